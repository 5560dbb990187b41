"""``--agent fastworkflow``: FastWorkflow's agent in worker processes, on the rollout's tools.

A worker speaks JSON lines on its standard streams; ``worker.py`` documents the protocol.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import itertools
import json
import logging
import os
import shutil
import signal
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from reward_kit.agent.base.files import temporary_folder
from reward_kit.agent.base.redaction import hide, redact
from reward_kit.agent.base.types import Usage
from reward_kit.agent.base.worker_thread import Waiters
from reward_kit.agent.players.agents.fastworkflow import preflight
from reward_kit.agent.players.agents.fastworkflow.setup import FastWorkflowHome
from reward_kit.agent.servers.endpoint import Admission, ToolEndpoint
from reward_kit.errors import AgentError, BundleError, ModelError, ModelInputError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.rollout.rollout import Rollout, TaskView

    Answer = dict[str, Any]

logger = logging.getLogger(__name__)

PLACE = "FastWorkflow"
TURN_LIMIT = 900.0
"""Seconds until the next call of a turn ends."""

_FAULTY_SETUP = {"Auth", "Billing", "Configuration", "NotConfigured", "UnsupportedModel"}
"""Kinds of DSPy's ``LM...Error`` for faults in the settings; other libraries give a status with those."""


class FastWorkflow:
    """Factory of the agents: tool endpoint and workers, opened before the first rollout.

    ``models`` are known after ``open``, by role.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        tasks: Sequence[Task],
        *,
        home: FastWorkflowHome | None = None,
        warn: Callable[[str], None] = logger.warning,
    ) -> None:
        self.config = config
        self.endpoint = ToolEndpoint()
        self.workers: list[FastWorkflowProcess] = []
        self.models: dict[str, str] = {}
        self._warn = warn
        self._tasks = tasks
        self._home = home or FastWorkflowHome.find()
        self._resources = contextlib.AsyncExitStack()

    def __call__(self) -> FastWorkflowAgent:
        return FastWorkflowAgent(self)

    async def open(self) -> None:
        """Check the set-up, and start the workers.

        Raises ``ModelSetupError`` with everything that is missing.
        """
        environment = preflight.worker_environment(self.config)
        missing = preflight.faults_of_home(self._home)
        faults = [*missing, *preflight.faults_of_settings(environment, self.config)]
        if missing:
            preflight.check(faults)
        of_training, untrained = preflight.training_of(self._home)
        played = [task for task in self._tasks if task.row.id not in self.unplayable]
        of_tools, warnings = preflight.faults_of_tools(self._home.workflow(), played or self._tasks)
        await self._start(environment)
        description = self.workers[0].description
        if "error" in description:
            raise_fault(description["error"])
        preflight.check([*faults, *of_training, *of_tools, *preflight.faults_of_worker(description)])
        self.models = {role: environment[f"LLM_{role}"] for role in preflight.ROLES}
        for warning in [*warnings, *untrained]:
            self._warn(warning)

    @cached_property
    def unplayable(self) -> dict[str, str]:
        """The rows to leave out with ``--skip-unplayable``, each with the reason."""
        if not self.config.skip_unplayable or preflight.faults_of_home(self._home):
            return {}
        faults = {task.row.id: preflight.fault_of_row(self._home.workflow(), task) for task in self._tasks}
        return {row_id: fault for row_id, fault in faults.items() if fault is not None}

    async def close(self) -> None:
        """Stop the workers, then the endpoint."""
        await self._resources.aclose()

    async def _start(self, environment: dict[str, str]) -> None:
        folder = temporary_folder("fastworkflow")
        self._resources.callback(shutil.rmtree, folder, ignore_errors=True)
        await self.endpoint.open()
        self._resources.push_async_callback(self.endpoint.close)
        # -I: keeps this process's import path out of the other environment
        program = str(Path(__file__).with_name("worker.py"))
        command = [str(self._home.python), "-I", "-X", "utf8", program, str(self._home.workflow())]
        try:
            async with asyncio.TaskGroup() as starting:
                for _ in range(self.config.fastworkflow_workers):
                    worker = FastWorkflowProcess(command, environment, folder)
                    self.workers.append(worker)
                    self._resources.push_async_callback(worker.end, "the evaluation is over")
                    starting.create_task(worker.start())
        except* ModelSetupError as errors:
            raise errors.exceptions[0] from None


class FastWorkflowAgent:
    """Plays one rollout in a worker that the evaluation's rollouts share."""

    def __init__(self, shared: FastWorkflow) -> None:
        self._shared = shared
        self._rollout: Rollout | None = None
        self._worker: FastWorkflowProcess | None = None
        self._admission: Admission | None = None
        self._limit: asyncio.Timeout | None = None

    @classmethod
    def configured(cls, config: EvaluationConfig, tasks: Sequence[Task]) -> FastWorkflow:
        """Return the factory of an evaluation's agents, which owns their processes."""
        return FastWorkflow(config, tasks)

    def check(self, task: TaskView) -> None:
        """Raise ``BundleError`` for a row to leave out."""
        if (fault := self._shared.unplayable.get(task.id)) is not None:
            raise BundleError(f"row {task.id}: the workflow has {fault}", place=task.place)

    async def respond(self, rollout: Rollout) -> str | Message:
        """Pass the user's last line on and return FastWorkflow's answer or question.

        Raises ``ModelError`` if a model or the worker failed, ``AgentError`` if FastWorkflow did.
        """
        worker = self._worker or await self.join(rollout)
        try:
            async with asyncio.timeout(TURN_LIMIT) as limit:
                self._limit = limit
                answer = await worker.ask("turn", rollout=rollout.id, text=_heard(rollout))
        except TimeoutError:
            fault = f"no model call and no tool call of a turn ended within {TURN_LIMIT:g} s"
            await worker.end(fault)
            raise ModelError(fault, place=PLACE, retryable=True) from None
        finally:
            self._limit = None
        if rollout.stop_reason is not None:
            return ""  # the conversation is over
        if "error" in answer:
            raise_fault(answer["error"])
        if answer["status"] == "stopped":
            raise ModelError("the turn was cancelled", place=PLACE, retryable=True)
        return _said(answer)

    async def join(self, rollout: Rollout) -> FastWorkflowProcess:
        """Begin ``rollout`` in the worker with the fewest rollouts."""
        worker = min(self._shared.workers, key=lambda worker: len(worker.rollouts))
        await worker.start()
        self._rollout, self._worker = rollout, worker
        worker.rollouts[rollout.id] = self._note
        self._admission = self._shared.endpoint.admit(rollout)
        policy = rollout.system_prompt if self._shared.config.fastworkflow_policy == "insights" else None
        access = {"tools": f"{self._shared.endpoint.url}/tools", "token": self._admission.token}
        answer = await worker.ask("open", rollout=rollout.id, **access, policy=policy)
        if "error" in answer:
            raise_fault(answer["error"])
        return worker

    async def close(self) -> None:
        """Leave the worker, which ends a running turn before its next call."""
        if self._admission is not None:
            self._admission.revoke()
        if self._rollout is not None and self._worker is not None:
            with contextlib.suppress(ModelError):  # the worker is gone
                self._worker.send("close", rollout=self._rollout.id)
            self._worker.rollouts.pop(self._rollout.id, None)

    def _note(self, event: dict[str, Any]) -> None:
        """Count a model call that the worker reports, and grant the turn further time."""
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(asyncio.get_running_loop().time() + TURN_LIMIT)
        if event["event"] == "model_call" and self._rollout is not None:
            try:
                self._rollout.count_usage(Usage(**event["usage"]), **event["call"])
            except (TypeError, ValueError) as error:  # costs this rollout, not the worker's others
                self._rollout.stop("agent_error", f"FastWorkflow counts a model call wrongly: {error}")


def _heard(rollout: Rollout) -> str:
    """Return the user's last line; in the first turn, with everything said before it."""
    lines = rollout.lines
    if not lines:
        raise AgentError("FastWorkflow needs a user's line, and there is none")
    if rollout.turns > 1 or len(lines) == 1:
        return lines[-1].text
    return "\n".join(f"{line.speaker}: {line.text}" for line in lines)


def _said(answer: dict[str, Any]) -> Message:
    """Build the assistant message, with FastWorkflow's steps as its reasoning."""
    text = str(answer.get("text") or "").strip()
    if not text:
        raise AgentError(f"FastWorkflow gave no answer ({answer.get('reason') or answer['status']})")
    thoughts = answer.get("thoughts") or ""
    if answer.get("reason"):
        thoughts = f"{thoughts}\n[{answer['status']}: {answer['reason']}]".strip()
    message: Message = {"role": "assistant", "content": text}
    return {**message, "reasoning_content": thoughts} if thoughts else message


def raise_fault(fault: Mapping[str, Any]) -> NoReturn:
    """Raise a fault that the worker reported: ``ModelError`` for models and tools, else ``AgentError``."""
    text = redact(f"{fault['name']}: {fault['text']}")
    status = fault["status"] if isinstance(fault["status"], int) else None
    if fault["kind"] == "agent":
        raise AgentError(f"FastWorkflow failed: {text}")
    if fault["kind"] == "tools":
        raise ModelError(f"the tools cannot be reached: {text}", place=PLACE, status=status, retryable=True)
    if fault["name"] in ("ContextWindowExceededError", "ContentPolicyViolationError") or status == 413:
        raise ModelInputError(f"a model refuses the conversation: {text}", place=PLACE, status=status)
    kind = fault["name"].removeprefix("LM").removesuffix("Error")
    if kind in _FAULTY_SETUP or status in (401, 402, 403, 404):
        remedy = "Check the models in LLM_* and their keys."
        raise ModelSetupError(f"a model cannot be called: {text}", place=PLACE, remedy=remedy, status=status)
    retryable = status not in (400, 422)
    raise ModelError(f"a model did not answer: {text}", place=PLACE, status=status, retryable=retryable)


# -- worker processes

LONGEST_LINE = 64 * 1024 * 1024
LAST_LINES = 12
"""Lines of a worker's standard error in the message when it exits unexpectedly."""
START_LIMIT = 300.0
"""Seconds until a started process answers."""


class FastWorkflowProcess:
    """One process, which is started anew if it is lost.

    ``rollouts`` maps the ids of its rollouts to listeners for their events.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self.rollouts: dict[str, Callable[[Answer], None]] = {}
        self.process: asyncio.subprocess.Process | None = None
        """The process while it takes requests, and its ``description`` of the workflow."""
        self.description: Answer = {}
        self._command = command
        self._environment = {**environment, "TMPDIR": str(folder)}
        self._folder = folder
        self._starting = asyncio.Lock()
        self._reading: asyncio.Future[None] | None = None
        self._waiting: Waiters[int, Answer] = Waiters()
        self._numbers = itertools.count(1)
        self._fault = "it was not started"

    async def start(self) -> None:
        """Start the process unless it runs, and wait until it answers.

        Raises ``ModelSetupError`` if it does not.
        """
        async with self._starting:
            if self.process is not None:
                return
            try:
                self.process = process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    cwd=self._folder,
                    env=self._environment,
                    limit=LONGEST_LINE,
                    start_new_session=True,  # the evaluation handles Ctrl-C
                )
            except OSError as error:
                raise ModelSetupError(f"cannot be started: {error}", place=PLACE) from error
            self._reading = asyncio.ensure_future(self._read(process))
            try:
                async with asyncio.timeout(START_LIMIT):
                    self.description = await self.ask("describe")
            except (TimeoutError, ModelError) as error:
                fault = error.fault if isinstance(error, ModelError) else f"not ready after {START_LIMIT:g} s"
                await self.end(fault)
                raise ModelSetupError(f"a worker does not start: {fault}", place=PLACE) from error

    def send(self, op: str, **fields: Any) -> int:
        """Send a request and return its number.

        Raises ``ModelError`` if the process has ended, also if another one has replaced it for new rollouts.
        """
        is_known = "rollout" not in fields or fields["rollout"] in self.rollouts
        if self.process is None or self.process.stdin is None or not is_known:
            raise self._lost()
        number = next(self._numbers)
        self.process.stdin.write(f"{json.dumps({'id': number, 'op': op, **fields})}\n".encode())
        return number

    async def ask(self, op: str, **fields: Any) -> Answer:
        """Send a request and return the answer. Raises ``ModelError`` as ``send`` does."""
        return await self._waiting.wait(self.send(op, **fields))

    async def end(self, fault: str) -> None:
        """Kill the process group; pending requests fail with ``fault``."""
        process, reading = self.process, self._reading
        if process is None or reading is None:
            return
        self._lose(process, fault)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        reading.cancel()
        await asyncio.wait([reading])

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None and process.stderr is not None, "both are pipes"  # noqa: PT018
        last_lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        errors = asyncio.ensure_future(self._log(process.stderr, process.pid, last_lines))
        try:
            async for line in process.stdout:
                message = json.loads(hide(line.decode()))
                if "event" not in message:
                    self._waiting.answer(message["id"], message)
                elif listener := self.rollouts.get(message["rollout"]):
                    listener(message)
            await process.wait()
            await asyncio.wait({errors}, timeout=1.0)  # a child may keep the pipe open
        finally:
            errors.cancel()
            end = "an invalid line" if process.returncode is None else f"exit code {process.returncode}"
            said = "; ".join(filter(str.strip, last_lines))
            self._lose(process, f"a worker exited unexpectedly ({end})" + (f": {said}" if said else ""))

    async def _log(self, lines: asyncio.StreamReader, pid: int, last_lines: collections.deque[str]) -> None:
        async for line in lines:
            text = redact(line.decode(errors="replace").rstrip())
            last_lines.append(text[-300:])
            logger.debug("worker %s: %s", pid, text)

    def _lose(self, process: asyncio.subprocess.Process, fault: str) -> None:
        if self.process is not process:
            return
        self.process, self._fault = None, fault
        self.rollouts.clear()
        self._waiting.fail_all(self._lost())
        self._waiting = Waiters()  # for the next process

    def _lost(self) -> ModelError:
        """Return the error of a rollout whose process ended; it can be replayed."""
        return ModelError(self._fault, place=PLACE, retryable=True)
