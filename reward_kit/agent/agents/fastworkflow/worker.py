"""Play rollouts with FastWorkflow: a program that runs in FastWorkflow's own environment.

    python -I worker.py WORKFLOW_FOLDER

It speaks JSON lines on stdin and stdout, plays many rollouts concurrently and imports nothing of this
project. Each request has an ``id``, which its answer repeats; lines with ``event`` come unrequested.
FastWorkflow and its libraries print to standard error. The process exits at the end of stdin.

- ``describe``: versions, whether the workflow is trained, the variables that its models lack;
- ``open``: ``rollout``, ``door`` (base address of the tools), ``token``, ``policy`` (text or null);
- ``turn``: ``rollout``, ``text``; gives ``status``, ``reason``, ``text``, ``thoughts``, or ``error``;
- ``action``: ``rollout``, ``command``, ``parameters``: one command without any model; gives ``text``;
- ``cancel``: ``rollout``: its turn ends, as ``stopped``, before its next model call or tool call;
- ``close``: ``rollout``;
- ``ping``: answered by the reading thread, which tells a frozen process from a busy one.

``error`` is an object: ``kind`` (``model``, ``door``, ``agent``), ``name`` of the exception, HTTP ``status``
or null, ``text``. The event ``model_call`` reports a call with its tokens and its cost.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # libraries print; standard output belongs to the protocol
sys.stdout = sys.stderr

import speedict  # noqa: E402 - standard output must be out of the way first

CURRENT: contextvars.ContextVar[Session] = contextvars.ContextVar("session")
"""The session of this thread."""

open_database = speedict.Rdict


def open_own_database(path: str, *given: Any, **named: Any) -> Any:
    """Keep the memory of interpreted utterances per rollout, not beside the workflow for all.

    Installed before FastWorkflow is imported, which loads the calling module twice, under two names.
    """
    session = CURRENT.get(None)
    if session is not None and "___convo_info" in str(path):
        path = f"{session.folder}/{Path(path).name}"
    return open_database(path, *given, **named)


speedict.Rdict = open_own_database

import dspy  # noqa: E402 - standard output must be out of the way first
import fastworkflow  # noqa: E402 - as above
import litellm  # noqa: E402 - as above
from dspy.utils.callback import BaseCallback  # noqa: E402 - as above

Answer = dict[str, Any]
"""The JSON object of a line, or a part of one."""

ROLES = ("AGENT", "PLANNER", "PARAM_EXTRACTION")
MODEL_ARGUMENTS = "REWARD_KIT_FASTWORKFLOW_MODEL_ARGS"
TOOLS = "reward_kit_tools"
"""Key of the session in a workflow's context, for its tools."""

DOOR_TRIES = 4
TOOL_LIMIT = 600.0
"""Seconds that a tool may take; the tools' own limits are shorter."""

OBSERVATION = 1000
THREADS = 256

AGENTS_OWN_FAULTS = ("ContextWindowExceededError", "LMInvalidRequestError", "BadRequestError")
"""Refusals of the request itself; FastWorkflow shortens its trajectory and retries."""


class RolloutOverError(BaseException):
    """The rollout is over. Not an ``Exception``: FastWorkflow would repeat the command."""


class DoorLostError(BaseException):
    """The tools cannot be reached. Not an ``Exception``, for the same reason."""


class ModelFailedError(BaseException):
    """A model could not answer. Not an ``Exception``: FastWorkflow would continue without the answer."""

    def __init__(self, fault: Answer) -> None:
        self.fault = fault
        super().__init__(fault["text"])


class Lines:
    """Standard output, one JSON line at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def send(self, line: Answer) -> None:
        text = json.dumps(line, default=str)
        with self._lock:
            OUT.write(text + "\n")
            OUT.flush()


class ModelCalls(BaseCallback):
    """Reports model calls, and ends the turn if one fails or the rollout is over."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._open: dict[str, tuple[float, Any]] = {}

    def on_lm_start(self, call_id: str, instance: Any, inputs: Any) -> None:  # noqa: ARG002 - DSPy's signature
        self._session.check_running()
        self._open[call_id] = (time.time(), instance)

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:  # noqa: ARG002 - DSPy's
        started, model = self._open.pop(call_id)
        seconds = time.time() - started
        if exception is None:
            self._session.report_call(model, started, seconds)
        elif isinstance(exception, Exception):
            fault = fault_of(exception)
            sys.stderr.write(f"model call failed: {fault['name']} {fault['status']}: {fault['text']}\n")
            if fault["name"] not in AGENTS_OWN_FAULTS:
                raise ModelFailedError(fault) from exception


class Session:
    """One rollout: a FastWorkflow context bound to the rollout's tools."""

    def __init__(self, lines: Lines, workflow: str, message: Answer) -> None:
        self.rollout = message["rollout"]
        self.policy = message.get("policy")
        self.folder = tempfile.mkdtemp(prefix="rollout-")  # in the process's own temporary folder
        self._lines = lines
        self._url = message["door"].rstrip("/")
        self._token = message["token"]
        self._turns = 0
        self._over = False
        self._shown: tuple[object, int] = (None, 0)
        key = f"rollout-{self.rollout}"
        self._context = fastworkflow.WorkflowExecutionContext(run_as_agent=True, session_key=key)
        self._workflow = fastworkflow.Workflow.create(
            workflow, workflow_id_str=key, workflow_context={TOOLS: self}
        )
        self._context.bind_app_workflow(self._workflow)

    def turn(self, text: str) -> Answer:
        """Pass the user's line on and return the reply."""
        self._turns += 1
        if text.startswith("/"):
            text = f" {text}"  # a slash would switch to commands typed by hand
        try:
            output = self._run(lambda: self._context.process_turn(text))
        except RolloutOverError:
            return {"status": "stopped"}
        except DoorLostError as error:
            return {"error": {"kind": "door", "name": "DoorLostError", "status": None, "text": str(error)}}
        except ModelFailedError as error:
            return {"error": error.fault}
        except Exception as error:  # noqa: BLE001 - FastWorkflow's own fault, told as the agent's
            traceback.print_exc()
            return {"error": fault_of(error)}
        return {
            "status": output.status.value,
            "reason": output.failure_reason,
            "text": output.answer,
            "thoughts": self._new_thoughts(),
        }

    def action(self, command: str, parameters: Answer) -> Answer:
        """Run one command with these parameters, without any model."""
        self._turns += 1
        # not checked: an action of the package takes no lists, which some commands need
        action = fastworkflow.Action.model_construct(command_name=command, parameters=parameters)
        output = self._run(lambda: self._context.process_action_turn(action))
        return {"status": output.status.value, "text": output.answer, "success": output.success}

    def _run(self, work: Callable[[], Any]) -> Any:
        self.check_running()
        mine = CURRENT.set(self)
        try:
            with dspy.context(callbacks=[ModelCalls(self)]):
                return work()
        finally:
            CURRENT.reset(mine)

    def cancel(self) -> None:
        self._over = True

    def check_running(self) -> None:
        if self._over:
            raise RolloutOverError

    def close(self) -> None:
        self._over = True
        self._context.close()
        self._workflow.close()
        self._workflow.context.pop(TOOLS, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, name: str, arguments: Answer) -> str:
        """Call the tool of this name at the rollout's endpoint, for the workflow's tools."""
        self.check_running()
        body = json.dumps(arguments).encode()
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self._token}",
            "Idempotency-Key": self._attempt(name, body),
        }
        for tried in range(DOOR_TRIES):
            if tried:
                time.sleep(0.5 * 2**tried)
            request = urllib.request.Request(f"{self._url}/tools/{name}", data=body, headers=headers)  # noqa: S310 - http, to this machine
            try:
                with OPENER.open(request, timeout=TOOL_LIMIT) as answer:
                    told = json.load(answer)
            except urllib.error.HTTPError as error:
                if error.code == 401:
                    raise RolloutOverError from error  # the endpoint has closed this rollout
                fault = f"the tool endpoint answered HTTP {error.code}"
            except (OSError, ValueError) as error:
                fault = f"the tool endpoint cannot be reached: {error}"
            else:
                if told.get("stopped"):
                    self._over = True
                    raise RolloutOverError
                result: str = told["result"]
                return result
        raise DoorLostError(fault)

    def _attempt(self, name: str, body: bytes) -> str:
        """Return a key that is equal only for repetitions of one call: same agent step, same content."""
        agent = self._context.workflow_tool_agent
        step = len(agent.current_trajectory) if agent is not None else 0
        digest = hashlib.sha256(name.encode() + b"\n" + body).hexdigest()[:24]
        return f"{self._turns}.{step}.{digest}"

    def report_call(self, model: Any, started: float, seconds: float) -> None:
        entry = model.history[-1] if model.history else {}
        usage = entry.get("usage") or {}
        inputs = usage.get("prompt_tokens_details") or {}
        outputs = usage.get("completion_tokens_details") or {}
        self._lines.send(
            {
                "event": "model_call",
                "rollout": self.rollout,
                "model": model.model,
                "input_tokens": usage.get("prompt_tokens") or 0,
                "cached_tokens": part(inputs, "cached_tokens"),
                "output_tokens": usage.get("completion_tokens") or 0,
                "reasoning_tokens": part(outputs, "reasoning_tokens"),
                "cost": entry.get("cost"),
                "finish_reason": finish_reason(entry.get("response")),
                "started": started,
                "seconds": seconds,
            }
        )

    def _new_thoughts(self) -> str:
        """Return the agent's steps of this turn; a resumed turn continues the earlier trajectory."""
        agent = self._context.workflow_tool_agent
        trajectory = agent.current_trajectory if agent is not None else {}
        shown, index = self._shown
        index = index if shown is trajectory else 0
        text = []
        while any(f"{part}_{index}" in trajectory for part in ("thought", "observation")):
            thought = trajectory.get(f"thought_{index}")
            action = trajectory.get(f"action_{index}")
            observation = trajectory.get(f"observation_{index}")
            text += [str(thought)] if thought else []
            text += [f"-> {action}"] if action else []
            text += [f"<- {shortened(observation)}"] if observation is not None else []
            index += 1
        self._shown = (trajectory, index)
        return "\n".join(text)


def shortened(observation: object) -> str:
    text = str(observation)
    return text if len(text) <= OBSERVATION else f"{text[:OBSERVATION]} ..."


def part(details: Any, name: str) -> int:
    """Return a number from a usage's details, given as dict or object."""
    value = details.get(name) if isinstance(details, dict) else getattr(details, name, None)
    return value or 0


def finish_reason(response: Any) -> str:
    choices = getattr(response, "choices", None)
    reason = getattr(choices[0] if choices else response, "finish_reason", None)
    return str(reason) if reason else "stop"


def fault_of(error: BaseException) -> Answer:
    """Describe a failure: of the model behind an exception, or of FastWorkflow itself."""
    seen: BaseException | None = error
    while seen is not None:
        home = type(seen).__module__.partition(".")[0]
        if home in ("litellm", "openai") or isinstance(seen, dspy.utils.exceptions.LMError):
            status = getattr(seen, "status", None) or getattr(seen, "status_code", None)
            text = str(seen)[:500]
            return {"kind": "model", "name": type(seen).__name__, "status": status, "text": text}
        seen = seen.__cause__ or seen.__context__
    return {"kind": "agent", "name": type(error).__name__, "status": None, "text": str(error)[:500]}


def patch_fastworkflow() -> Answer:
    """Change FastWorkflow's defaults where rollouts share a process; return the model arguments."""
    from fastworkflow import cache_matching
    from fastworkflow.model_pipeline_training import CommandRouter
    from fastworkflow.utils import dspy_utils, insights_loader

    litellm.drop_params = True  # as the package's chat session does
    litellm.suppress_debug_info = True
    dspy.configure_cache(
        enable_disk_cache=False, enable_memory_cache=False
    )  # caching would make trials repeat each other

    arguments: Answer = json.loads(os.environ.pop(MODEL_ARGUMENTS, "{}"))
    make_model, load_insights = dspy_utils.get_lm, insights_loader.load_workflow_insights

    def get_lm(model_variable: str, key_variable: str | None = None, **given: Any) -> Any:
        return make_model(model_variable, key_variable, **{**arguments, **given})

    def load_workflow_insights(folder: str, kind: str) -> str | None:
        own, policy = load_insights(folder, kind), CURRENT.get().policy
        return "\n\n".join(filter(None, (own, policy if kind == "planning_agent" else None))) or None

    dspy_utils.get_lm = get_lm
    insights_loader.load_workflow_insights = load_workflow_insights
    # The intent models are shared; neither their loading nor their tokenizers are thread-safe.
    alone = threading.RLock()
    CommandRouter.__init__ = one_at_a_time(CommandRouter.__init__, alone)
    CommandRouter.predict = one_at_a_time(CommandRouter.predict, alone)
    cache_matching.get_embedding = one_at_a_time(cache_matching.get_embedding, alone)
    return arguments


def one_at_a_time(function: Callable[..., Any], lock: threading.RLock) -> Callable[..., Any]:
    """Wrap ``function`` so that it holds ``lock``."""

    @functools.wraps(function)
    def locked(*given: Any, **named: Any) -> Any:
        with lock:
            return function(*given, **named)

    return locked


def describe(workflow: str, arguments: Answer) -> Answer:
    """Report versions and faults of the set-up."""
    from fastworkflow.model_pipeline_training import is_workflow_trained

    trained, missing = is_workflow_trained(workflow)
    packages = ("fastworkflow", "dspy", "litellm", "torch")
    return {
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in packages},
        "trained": trained,
        "untrained": missing,
        "lacking": {role: lacking(role, arguments) for role in ROLES},
    }


def lacking(role: str, arguments: Answer) -> list[str]:
    """Return environment variables that the model of this role lacks."""
    model = os.environ.get(f"LLM_{role}")
    if not model:
        return [f"LLM_{role}"]
    if model.startswith("litellm_proxy/"):
        return [] if os.environ.get("LITELLM_PROXY_API_BASE") else ["LITELLM_PROXY_API_BASE"]
    if os.environ.get(f"LITELLM_API_KEY_{role}") or "api_key" in arguments:
        return []
    return list(litellm.validate_environment(model).get("missing_keys") or ())


class Worker:
    """Serves the requests to the sessions of this process."""

    def __init__(self, workflow: str) -> None:
        self._workflow = workflow
        self._lines = Lines()
        self._arguments = patch_fastworkflow()
        self._sessions: dict[str, Session] = {}

    def serve(self) -> None:
        self._lines.send({"event": "ready"})
        threads = ThreadPoolExecutor(THREADS)
        for line in sys.stdin:
            if not line.strip():
                continue
            message = json.loads(line)
            if message["op"] in ("ping", "cancel"):
                self._answer(message)
            else:
                threads.submit(self._answer, message)

    def _answer(self, message: Answer) -> None:
        try:
            answer = getattr(self, f"_{message['op']}")(message)
        except BaseException as error:  # noqa: BLE001 - the reader of the line must hear of everything
            traceback.print_exc()
            answer = {"error": fault_of(error)}
        self._lines.send({"id": message["id"], **answer})

    def _ping(self, _: Answer) -> Answer:
        return {}

    def _describe(self, _: Answer) -> Answer:
        return describe(self._workflow, self._arguments)

    def _open(self, message: Answer) -> Answer:
        self._sessions[message["rollout"]] = Session(self._lines, self._workflow, message)
        return {}

    def _turn(self, message: Answer) -> Answer:
        return self._sessions[message["rollout"]].turn(message["text"])

    def _action(self, message: Answer) -> Answer:
        return self._sessions[message["rollout"]].action(message["command"], message["parameters"])

    def _cancel(self, message: Answer) -> Answer:
        session = self._sessions.get(message["rollout"])
        if session is not None:
            session.cancel()
        return {}

    def _close(self, message: Answer) -> Answer:
        session = self._sessions.pop(message["rollout"], None)
        if session is not None:
            session.close()
        return {}


OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Bypasses proxies of the environment, which do not serve this machine."""


def main() -> None:
    os.environ["SPEEDDICT_FOLDERNAME"] = tempfile.mkdtemp(prefix="fastworkflow-")
    # All settings come from the environment; empty keys avoid a warning at each call.
    keys = [f"LITELLM_API_KEY_{role}" for role in ROLES]
    fastworkflow.init(env_vars={name: "" for name in keys if not os.environ.get(name)})
    Worker(str(Path(sys.argv[1]).resolve())).serve()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()
    os._exit(0)  # do not wait for threads that wait for a model
