"""Play rollouts with FastWorkflow: a program that runs in FastWorkflow's own environment.

    python -I worker.py WORKFLOW_FOLDER

It speaks JSON lines on stdin and stdout, plays many rollouts concurrently and imports nothing of this
project. Each request has an ``id``, which its answer repeats. FastWorkflow and its libraries print to
standard error. The process exits at the end of stdin.

- ``describe``: whether the workflow is trained, and the variables that its models lack;
- ``open``: ``rollout``, ``tools`` (base address of its tools), ``token``, ``policy`` (text or null);
- ``turn``: ``rollout``, ``text``; gives ``status``, ``reason``, ``text``, ``thoughts``, or ``error``;
- ``action``: ``rollout``, ``command``, ``parameters``: one command without any model; gives ``text``;
- ``close``: ``rollout``: a running turn ends, as ``stopped``, before its next model call or tool call.

``error`` is an object: ``kind`` (``model``, ``tools``, ``agent``), ``name`` of the exception, HTTP ``status``
or null, ``text``. Lines with ``event`` come unrequested: ``model_call`` reports the ``usage`` of a call and
further facts of the ``call``, ``tool_call`` that a tool has answered.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

OUT = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)  # libraries print; standard output belongs to the protocol
sys.stdout = sys.stderr

import speedict  # noqa: E402 - standard output must be out of the way first

CURRENT: contextvars.ContextVar[RolloutSession] = contextvars.ContextVar("session")
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

import dspy  # noqa: E402 - as above
import fastworkflow  # noqa: E402 - as above
import litellm  # noqa: E402 - as above
from dspy.utils.callback import BaseCallback  # noqa: E402 - as above

Answer = dict[str, Any]
"""The JSON object of a line, or a part of one."""

ROLES = ("AGENT", "PLANNER", "PARAM_EXTRACTION")
MODEL_ARGUMENTS = "REWARD_KIT_FASTWORKFLOW_MODEL_ARGS"
TOOLS = "reward_kit_tools"
"""Key of the session in a workflow's context, for its tools."""

TOOL_LIMIT = 600.0
"""Seconds that a tool may take; the tools' own limits are shorter."""
OBSERVATION = 1000
"""Characters of a command's result that the thoughts show."""

AGENTS_OWN_FAULTS = ("ContextWindowExceededError", "LMInvalidRequestError", "BadRequestError")
"""Refusals of the request itself; FastWorkflow shortens its trajectory and retries."""

STOPPED: Answer = {"status": "stopped"}
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Bypasses proxies of the environment, which do not serve this machine."""

_writing = threading.Lock()


def send(line: Answer) -> None:
    text = json.dumps(line, default=str)
    with _writing:
        OUT.write(text + "\n")
        OUT.flush()


class TurnEndedError(BaseException):
    """Ends a turn with its argument as the answer.

    Not an ``Exception``, which FastWorkflow would catch, to repeat the command or to go on without it.
    """


class ModelCalls(BaseCallback):
    """Reports model calls, and ends the turn if one fails or the rollout is over."""

    def __init__(self, session: RolloutSession) -> None:
        self._session = session
        self._open: dict[str, tuple[float, Any]] = {}

    def on_lm_start(self, call_id: str, instance: Any, inputs: Any) -> None:  # noqa: ARG002 - DSPy's signature
        self._session.check_running()
        self._open[call_id] = (time.time(), instance)

    def on_lm_end(self, call_id: str, outputs: Any, exception: BaseException | None = None) -> None:  # noqa: ARG002 - DSPy's
        started, model = self._open.pop(call_id)
        if exception is None:
            send({"event": "model_call", "rollout": self._session.rollout, **call_of(model, started)})
        elif isinstance(exception, Exception):
            fault = fault_of(exception)
            sys.stderr.write(f"model call failed: {fault['name']} {fault['status']}: {fault['text']}\n")
            if fault["name"] not in AGENTS_OWN_FAULTS:
                raise TurnEndedError({"error": fault}) from exception


class RolloutSession:
    """One rollout: a FastWorkflow context bound to the rollout's tools."""

    def __init__(self, workflow: str, rollout: str, tools: str, token: str, policy: str | None) -> None:
        self.rollout = rollout
        self.policy = policy
        self.folder = tempfile.mkdtemp(prefix="rollout-")  # in the process's own temporary folder
        self._tools = tools
        self._token = token
        self._turns = 0
        self.over = False
        self._playing = threading.Lock()
        self._results: dict[tuple[int, int, str, str], str] = {}
        self._shown: tuple[object, int] = (None, 0)
        key = f"rollout-{rollout}"
        self._context = fastworkflow.WorkflowExecutionContext(run_as_agent=True, session_key=key)
        self._workflow = fastworkflow.Workflow.create(
            workflow, workflow_id_str=key, workflow_context={TOOLS: self}
        )
        self._context.bind_app_workflow(self._workflow)

    def turn(self, text: str) -> Answer:
        """Pass the user's line on and return the reply."""
        line = f" {text}" if text.startswith("/") else text  # a slash would switch to commands typed by hand
        try:
            output = self._run(lambda: self._context.process_turn(line))
        except TurnEndedError as end:
            answer: Answer = end.args[0]
            return answer
        return {
            "status": output.status.value,
            "reason": output.failure_reason,
            "text": output.answer,
            "thoughts": self._new_thoughts(),
        }

    def action(self, command: str, parameters: Answer) -> Answer:
        """Run one command with these parameters, without any model."""
        # not checked: an action of the package takes no lists, which some commands need
        action = fastworkflow.Action.model_construct(command_name=command, parameters=parameters)
        output = self._run(lambda: self._context.process_action_turn(action))
        return {"status": output.status.value, "text": output.answer}

    def _run(self, work: Callable[[], Any]) -> Any:
        self._turns += 1
        mine = CURRENT.set(self)
        try:
            with self._playing, dspy.context(callbacks=[ModelCalls(self)]):
                self.check_running()
                return work()
        finally:
            CURRENT.reset(mine)

    def check_running(self) -> None:
        if self.over:
            raise TurnEndedError(STOPPED)

    def close(self) -> None:
        self.over = True
        with self._playing:
            self._context.close()
            self._workflow.close()
        self._workflow.context.pop(TOOLS, None)
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, name: str, arguments: Answer) -> str:
        """Call a tool of the rollout, for the workflow's tools.

        FastWorkflow repeats a command in which anything raised: the same call in the same step of the agent
        is answered with its first result.
        """
        body = json.dumps(arguments)
        call = (self._turns, len(self._trajectory), name, body)
        if call not in self._results:
            self.check_running()
            self._results[call] = self._post(name, body)
            send({"event": "tool_call", "rollout": self.rollout})
        return self._results[call]

    def _post(self, name: str, body: str) -> str:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(f"{self._tools}/{name}", data=body.encode(), headers=headers)  # noqa: S310 - http, to this machine
        try:
            with OPENER.open(request, timeout=TOOL_LIMIT) as response:
                answer = json.load(response)
        except (OSError, ValueError) as error:
            revoked = isinstance(error, urllib.error.HTTPError) and error.code == 401
            raise TurnEndedError(STOPPED if revoked else {"error": fault_of(error, "tools")}) from error
        if answer["stopped"]:
            self.over = True
            raise TurnEndedError(STOPPED)
        return str(answer["result"])

    @property
    def _trajectory(self) -> Answer:
        """The steps of the agent: ``thought_0``, ``action_0``, ``observation_0``, ``thought_1`` ..."""
        return getattr(self._context.workflow_tool_agent, "current_trajectory", {})

    def _new_thoughts(self) -> str:
        """Return the agent's steps of this turn; a resumed turn continues the earlier trajectory."""
        trajectory = self._trajectory
        shown, index = self._shown
        index = index if shown is trajectory else 0
        lines = []
        while f"thought_{index}" in trajectory or f"observation_{index}" in trajectory:
            for sign, name in (("", "thought"), ("-> ", "action"), ("<- ", "observation")):
                if text := str(trajectory.get(f"{name}_{index}") or ""):
                    is_cut = name == "observation" and len(text) > OBSERVATION
                    lines.append(f"{sign}{text[:OBSERVATION]} ..." if is_cut else f"{sign}{text}")
            index += 1
        self._shown = (trajectory, index)
        return "\n".join(lines)


def call_of(model: Any, started: float) -> Answer:
    """Describe the last call of a DSPy model: its ``usage``, and the ``call``."""
    entry = model.history[-1] if model.history else {}
    usage, cost, response = entry.get("usage") or {}, entry.get("cost"), entry.get("response")
    choices = getattr(response, "choices", None)
    return {
        "usage": {
            "calls": 1,
            "input_tokens": usage.get("prompt_tokens") or 0,
            "cached_tokens": detail(usage.get("prompt_tokens_details"), "cached_tokens"),
            "output_tokens": usage.get("completion_tokens") or 0,
            "reasoning_tokens": detail(usage.get("completion_tokens_details"), "reasoning_tokens"),
            "cost": cost or 0.0,
            "unpriced_calls": int(cost is None),
        },
        "call": {
            "model": model.model,
            "finish_reason": str(
                getattr(choices[0] if choices else response, "finish_reason", None) or "stop"
            ),
            "started": started,
            "seconds": time.time() - started,
        },
    }


def detail(details: Any, name: str) -> int:
    """Return a number from a usage's details, given as dict or object."""
    return (details.get(name) if isinstance(details, dict) else getattr(details, name, None)) or 0


def fault_of(error: BaseException, kind: str = "agent") -> Answer:
    """Describe a failure: of the model behind an exception, else of ``kind``."""
    cause: BaseException | None = error
    while cause is not None and kind != "model":
        library = type(cause).__module__.partition(".")[0]
        if library in ("litellm", "openai") or isinstance(cause, dspy.utils.exceptions.LMError):
            error, kind = cause, "model"
        cause = cause.__cause__ or cause.__context__
    status = getattr(error, "status", None) or getattr(error, "status_code", None)
    return {"kind": kind, "name": type(error).__name__, "status": status, "text": str(error)[:500]}


def patch_fastworkflow() -> Answer:
    """Change FastWorkflow's defaults where rollouts share a process; return the model arguments."""
    from fastworkflow import cache_matching
    from fastworkflow.model_pipeline_training import CommandRouter
    from fastworkflow.utils import dspy_utils, insights_loader

    litellm.drop_params = True  # as the package's chat session does
    litellm.suppress_debug_info = True
    # a cache would make trials repeat each other
    dspy.configure_cache(enable_disk_cache=False, enable_memory_cache=False)

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
    def locked(*given: Any, **named: Any) -> Any:
        with lock:
            return function(*given, **named)

    return locked


class WorkerProgram:
    """Serves the requests to the sessions of this process."""

    def __init__(self, workflow: str) -> None:
        self._workflow = workflow
        self._arguments = patch_fastworkflow()
        self._sessions: dict[str, RolloutSession] = {}

    def serve(self) -> None:
        for line in sys.stdin:
            threading.Thread(target=self._answer, args=[json.loads(line)], daemon=True).start()

    def _answer(self, message: Answer) -> None:
        number = message.pop("id")
        try:
            answer = self._do(**message)
        except BaseException as error:  # noqa: BLE001 - the reader of the line must hear of everything
            traceback.print_exc()
            answer = {"error": fault_of(error)}
        send({"id": number, **answer})

    def _do(self, op: str, rollout: str = "", **given: Any) -> Answer:
        if op == "describe":
            return self._describe()
        if op == "turn":
            return self._sessions[rollout].turn(**given)
        if op == "action":
            return self._sessions[rollout].action(**given)
        if op == "open":
            self._sessions[rollout] = RolloutSession(self._workflow, rollout, **given)
        elif op == "close":
            self._sessions.pop(rollout).close()
        return {}

    def _describe(self) -> Answer:
        from fastworkflow.model_pipeline_training import is_workflow_trained

        trained, missing = is_workflow_trained(self._workflow)
        lacking = {role: self._lacking(role) for role in ROLES}
        return {"trained": trained, "untrained": missing, "lacking": lacking}

    def _lacking(self, role: str) -> list[str]:
        """Return environment variables that the named model of this role lacks."""
        model = os.environ.get(f"LLM_{role}")
        if not model:
            return []  # the evaluation has found that itself
        if model.startswith("litellm_proxy/"):
            return [] if os.environ.get("LITELLM_PROXY_API_BASE") else ["LITELLM_PROXY_API_BASE"]
        if os.environ.get(f"LITELLM_API_KEY_{role}") or "api_key" in self._arguments:
            return []
        return list(litellm.validate_environment(model).get("missing_keys") or ())


def main() -> None:
    os.environ["SPEEDDICT_FOLDERNAME"] = tempfile.mkdtemp(prefix="fastworkflow-")
    # All settings come from the environment; empty keys avoid a warning at each call.
    keys = [f"LITELLM_API_KEY_{role}" for role in ROLES]
    fastworkflow.init(env_vars={name: "" for name in keys if not os.environ.get(name)})
    WorkerProgram(str(Path(sys.argv[1]).resolve())).serve()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        main()
    os._exit(0)  # do not wait for threads that wait for a model
