"""Plays rollouts with FastWorkflow. A program of its own: it runs inside FastWorkflow's environment.

    python -I worker.py WORKFLOW_FOLDER

It speaks JSON lines on stdin and stdout, many rollouts side by side, and imports nothing of this project.
Each request carries an ``id`` and is answered by a line with the same ``id``; lines with ``event`` come
unasked. Standard error takes what FastWorkflow and its libraries print. The end of stdin ends the process.

- ``describe``: versions, whether the workflow is trained, the variables that its models lack;
- ``open``: ``rollout``, ``door`` (base address of the tools), ``token``, ``policy`` (text or null);
- ``turn``: ``rollout``, ``text``; gives ``status``, ``reason``, ``text``, ``thoughts``, or ``error``;
- ``action``: ``rollout``, ``command``, ``parameters``: one command without any model; gives ``text``;
- ``cancel``: ``rollout``: its turn ends, as ``stopped``, before its next model call or tool call;
- ``close``: ``rollout``;
- ``ping``: answered by the thread that reads, so that a frozen process is told from a busy one.

``error`` is an object: ``kind`` (``model``, ``door``, ``agent``), ``name`` of the exception, ``status`` of
HTTP where there was one, ``text``. The event ``model_call`` tells of a call with its tokens and its cost.
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
"""The rollout that this thread plays."""

open_database = speedict.Rdict


def open_own_database(path: str, *given: Any, **named: Any) -> Any:
    """What the words of a user were taken for is remembered beside the workflow, for all; here, by rollout.

    Taken before FastWorkflow is imported: it loads the module that does this twice, under two names.
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
"""Where the context of a workflow holds what its tools call."""

DOOR_TRIES = 4
TOOL_LIMIT = 600.0
"""Seconds that a tool may take: the tools have limits of their own, which come first."""

OBSERVATION = 1000
THREADS = 256

AGENTS_OWN_FAULTS = ("ContextWindowExceededError", "LMInvalidRequestError", "BadRequestError")
"""Refusals that depend on what was asked; FastWorkflow shortens its trajectory and asks again."""


class RolloutOverError(BaseException):
    """The rollout is over. Not an ``Exception``: FastWorkflow would run the command once more."""


class DoorLostError(BaseException):
    """The tools cannot be reached. Not an ``Exception``, for the same reason."""


class ModelFailedError(BaseException):
    """A model could not answer. Not an ``Exception``: FastWorkflow would go on without the answer."""

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
    """Tells of every model call of a turn, and ends the turn where one fails or the rollout is over."""

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
            self._session.tell_of_call(model, started, seconds)
        elif isinstance(exception, Exception):
            fault = fault_of(exception)
            sys.stderr.write(f"model call failed: {fault['name']} {fault['status']}: {fault['text']}\n")
            if fault["name"] not in AGENTS_OWN_FAULTS:
                raise ModelFailedError(fault) from exception


class Session:
    """One rollout: a FastWorkflow context of its own, bound to the rollout's tools."""

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
        """Hand over what the user said; what is to be said to the user comes back."""
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
        """What the workflow's tools do: call the tool of the same name behind the rollout's door."""
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
                    raise RolloutOverError from error  # the door knows this rollout no more
                fault = f"the tool door answered HTTP {error.code}"
            except (OSError, ValueError) as error:
                fault = f"the tool door cannot be reached: {error}"
            else:
                if told.get("stopped"):
                    self._over = True
                    raise RolloutOverError
                result: str = told["result"]
                return result
        raise DoorLostError(fault)

    def _attempt(self, name: str, body: bytes) -> str:
        """The same for calls that FastWorkflow repeats because something around them failed, and only those:
        they belong to the same step of the agent, and say the same.
        """
        agent = self._context.workflow_tool_agent
        step = len(agent.current_trajectory) if agent is not None else 0
        digest = hashlib.sha256(name.encode() + b"\n" + body).hexdigest()[:24]
        return f"{self._turns}.{step}.{digest}"

    def tell_of_call(self, model: Any, started: float, seconds: float) -> None:
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
        """The agent's steps of this turn; a resumed turn continues the trajectory that was shown before."""
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
    """A number of a usage's details, which come as dict or object."""
    value = details.get(name) if isinstance(details, dict) else getattr(details, name, None)
    return value or 0


def finish_reason(response: Any) -> str:
    choices = getattr(response, "choices", None)
    reason = getattr(choices[0] if choices else response, "finish_reason", None)
    return str(reason) if reason else "stop"


def fault_of(error: BaseException) -> Answer:
    """What failed: the model that is behind an exception, or FastWorkflow itself."""
    seen: BaseException | None = error
    while seen is not None:
        home = type(seen).__module__.partition(".")[0]
        if home in ("litellm", "openai") or isinstance(seen, dspy.utils.exceptions.LMError):
            status = getattr(seen, "status", None) or getattr(seen, "status_code", None)
            text = str(seen)[:500]
            return {"kind": "model", "name": type(seen).__name__, "status": status, "text": text}
        seen = seen.__cause__ or seen.__context__
    return {"kind": "agent", "name": type(error).__name__, "status": None, "text": str(error)[:500]}


def take_the_seams() -> Answer:
    """Everything that has to differ from FastWorkflow's defaults, for rollouts that share a process."""
    from fastworkflow import cache_matching
    from fastworkflow.model_pipeline_training import CommandRouter
    from fastworkflow.utils import dspy_utils, insights_loader

    litellm.drop_params = True  # the chat session of the package does this too
    litellm.suppress_debug_info = True
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)  # or trials repeat each other

    arguments: Answer = json.loads(os.environ.pop(MODEL_ARGUMENTS, "{}"))
    make_model, load_insights = dspy_utils.get_lm, insights_loader.load_workflow_insights

    def get_lm(model_variable: str, key_variable: str | None = None, **given: Any) -> Any:
        return make_model(model_variable, key_variable, **{**arguments, **given})

    def load_workflow_insights(folder: str, kind: str) -> str | None:
        own, policy = load_insights(folder, kind), CURRENT.get().policy
        return "\n\n".join(filter(None, (own, policy if kind == "planning_agent" else None))) or None

    dspy_utils.get_lm = get_lm
    insights_loader.load_workflow_insights = load_workflow_insights
    # The intent models are shared, and neither their loading nor their tokenizers bear two threads at once.
    alone = threading.RLock()
    CommandRouter.__init__ = one_at_a_time(CommandRouter.__init__, alone)
    CommandRouter.predict = one_at_a_time(CommandRouter.predict, alone)
    cache_matching.get_embedding = one_at_a_time(cache_matching.get_embedding, alone)
    return arguments


def one_at_a_time(function: Callable[..., Any], lock: threading.RLock) -> Callable[..., Any]:
    """``function``, which waits until no other thread holds ``lock``."""

    @functools.wraps(function)
    def locked(*given: Any, **named: Any) -> Any:
        with lock:
            return function(*given, **named)

    return locked


def describe(workflow: str, arguments: Answer) -> Answer:
    """What a person may have to mend before a run."""
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
    """Environment variables without which the model of this role cannot be called."""
    model = os.environ.get(f"LLM_{role}")
    if not model:
        return [f"LLM_{role}"]
    if model.startswith("litellm_proxy/"):
        return [] if os.environ.get("LITELLM_PROXY_API_BASE") else ["LITELLM_PROXY_API_BASE"]
    if os.environ.get(f"LITELLM_API_KEY_{role}") or "api_key" in arguments:
        return []
    return list(litellm.validate_environment(model).get("missing_keys") or ())


class Worker:
    """The sessions of this process, and what the requests do to them."""

    def __init__(self, workflow: str) -> None:
        self._workflow = workflow
        self._lines = Lines()
        self._arguments = take_the_seams()
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
"""Goes straight to the door: a proxy of the environment is not meant for this machine."""


def main() -> None:
    os.environ["SPEEDDICT_FOLDERNAME"] = tempfile.mkdtemp(prefix="fastworkflow-")
    # All settings come from the environment; a key that is not there is no reason for a warning at each call.
    keys = [f"LITELLM_API_KEY_{role}" for role in ROLES]
    fastworkflow.init(env_vars={name: "" for name in keys if not os.environ.get(name)})
    Worker(str(Path(sys.argv[1]).resolve())).serve()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()
    os._exit(0)  # threads may be waiting for a model; nobody waits for them any more
