"""Worker processes that play rollouts with FastWorkflow, and the sessions of rollouts in them.

A worker speaks JSON lines on its standard streams; ``worker.py`` documents the protocol."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from reward_kit.agent.base.redaction import redact
from reward_kit.agent.base.types import Usage
from reward_kit.agent.rollout.rollout import episode_of
from reward_kit.errors import AgentError, ModelError, ModelInputError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.rollout.rollout import Rollout
    from reward_kit.agent.servers.endpoint import ToolEndpoint

logger = logging.getLogger(__name__)

LONGEST_LINE = 64 * 1024 * 1024
LAST_LINES = 12
"""Lines of a worker's standard error in the message when it exits unexpectedly."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits for workers, in seconds.

    ``start``: until a process is ready. ``turn``: until the next model call or tool call of a turn ends.
    ``silence``: without an answer to a ping. ``farewell``: until a cancelled turn ends; since killing the
    process loses other rollouts, this is long enough for a slow model's answer.
    """

    start: float = 300.0
    turn: float = 900.0
    silence: float = 60.0
    farewell: float = 120.0


class WorkerLostError(ModelError):
    """A worker exited, or was killed because it did not answer; its rollouts can be replayed."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault, place="FastWorkflow", retryable=True)


class Worker:
    """One process. ``rollouts`` maps the ids of its rollouts to listeners for their events.

    ``hidden`` are secrets of its environment that this process's does not have; they are removed from its
    output.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        patience: Patience,
        *,
        hidden: Sequence[str] = (),
    ) -> None:
        self.rollouts: dict[str, Callable[[dict[str, Any]], None]] = {}
        self.cancelled_turns = 0
        """Cancelled turns that have not ended yet."""
        self._command = list(command)
        self._environment = dict(environment)
        self._folder = folder
        self._hidden = [secret.encode() for secret in hidden if secret]
        self._patience = patience
        self._process: asyncio.subprocess.Process | None = None
        self._ready = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asked = 0
        self._last_lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._fault: str | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""
        return self._fault is None and self._ready.is_set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises ``ModelSetupError`` if it does not start."""
        environment = {**self._environment, "TMPDIR": str(self._folder)}
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                cwd=self._folder,
                env=environment,
                limit=LONGEST_LINE,
                start_new_session=True,  # the evaluation handles Ctrl-C
            )
        except OSError as error:
            raise ModelSetupError(f"cannot be started: {error}", place="FastWorkflow") from error
        listening = asyncio.ensure_future(self._listen())
        self._tasks = [listening, asyncio.ensure_future(self._collect_errors())]
        ready = asyncio.ensure_future(self._ready.wait())
        try:
            await asyncio.wait(
                {ready, listening}, timeout=self._patience.start, return_when=asyncio.FIRST_COMPLETED
            )
        except BaseException:
            await self.end("no longer needed")
            raise
        finally:
            ready.cancel()
        if not self._ready.is_set():
            fault = self._fault or f"not ready after {self._patience.start:g} s"
            await self.end(fault)
            raise ModelSetupError(f"a worker does not start: {fault}", place="FastWorkflow")
        self._tasks.append(asyncio.ensure_future(self._watch()))

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Send a request and return the answer. Raises ``WorkerLostError`` if the process is gone."""
        if self._fault is not None:
            raise WorkerLostError(self._fault)
        assert self._process is not None, "start() comes first"
        assert self._process.stdin is not None, "it was started with a pipe"
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        line = json.dumps({"id": number, "op": op, **fields})
        try:
            with contextlib.suppress(ConnectionError):  # _listen reports the exit to all requests
                self._process.stdin.write(f"{line}\n".encode())
                await self._process.stdin.drain()
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def end(self, fault: str) -> None:
        """Kill the process group; pending requests fail with ``fault``."""
        self._lose(fault)
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                if hasattr(os, "killpg"):
                    os.killpg(self._process.pid, signal.SIGKILL)
                else:
                    self._process.kill()
            await self._process.wait()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        await asyncio.gather(*(task for task in self._tasks if task is not current), return_exceptions=True)

    async def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None, "it was started with a pipe"  # noqa: PT018 - one invariant
        try:
            async for line in self._process.stdout:
                self._hear(json.loads(self._without_secrets(line)))
        except ValueError as error:
            await self.end(f"a worker wrote an invalid line: {error}")
            return
        code = await self._process.wait()
        with contextlib.suppress(asyncio.TimeoutError):  # its last lines, if the pipe is closed
            await asyncio.wait_for(asyncio.shield(self._tasks[1]), 1.0)
        said = "; ".join(line for line in self._last_lines if line.strip())
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._lose(f"a worker exited unexpectedly ({how})" + (f": {said}" if said else ""))

    def _hear(self, message: dict[str, Any]) -> None:
        event = message.get("event")
        if event == "ready":
            self._ready.set()
        elif event is not None:
            listener = self.rollouts.get(message["rollout"])
            if listener is not None:
                listener(message)
        else:
            waiting = self._waiting.get(message["id"])
            if waiting is not None and not waiting.done():
                waiting.set_result(message)

    async def _collect_errors(self) -> None:
        assert self._process is not None and self._process.stderr is not None, "it was started with a pipe"  # noqa: PT018 - one invariant
        while True:
            try:
                line = await self._process.stderr.readline()
            except ValueError:
                continue  # skip an overlong line
            if not line:
                return
            text = redact(self._without_secrets(line).decode(errors="replace").rstrip())
            self._last_lines.append(text[-300:])
            logger.debug("worker %s: %s", self.pid, text)

    async def _watch(self) -> None:
        """Kill the process if it does not answer pings."""
        while self._fault is None:
            try:
                await asyncio.wait_for(self.ask("ping"), self._patience.silence)
            except TimeoutError:
                await self.end(f"a worker did not respond for {self._patience.silence:g} s and was killed")
            except WorkerLostError:
                return
            await asyncio.sleep(self._patience.silence / 4)

    def _without_secrets(self, line: bytes) -> bytes:
        for secret in self._hidden:
            line = line.replace(secret, b"[hidden]")
        return line

    def _lose(self, fault: str) -> None:
        if self._fault is None:
            self._fault = fault
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(WorkerLostError(self._fault))


class WorkerPool:
    """``size`` workers; a lost one is replaced when it is needed again."""

    def __init__(self, make: Callable[[], Worker], size: int) -> None:
        self._make = make
        self._workers = [make() for _ in range(size)]
        self._locks = [asyncio.Lock() for _ in range(size)]
        self._background: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> list[Worker]:
        return list(self._workers)

    async def open(self) -> None:
        """Start all workers. Raises ``ModelSetupError`` if one does not start."""
        starts = [asyncio.ensure_future(worker.start()) for worker in self._workers]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            raise

    async def take(self) -> Worker:
        """Return the worker with the fewest rollouts, restarted if it is lost."""
        place = min(range(len(self._workers)), key=self._load)
        async with self._locks[place]:
            if not self._workers[place].alive:
                worker = self._make()
                await worker.start()
                self._workers[place] = worker
            return self._workers[place]

    def later(self, work: Any) -> None:
        """Run a coroutine in the background, at most until the pool is closed."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """Cancel background work and kill all workers."""
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(
            *tasks, *(w.end("the evaluation is over") for w in self._workers), return_exceptions=True
        )

    def _load(self, place: int) -> tuple[int, int]:
        worker = self._workers[place]
        return (worker.cancelled_turns, len(worker.rollouts)) if worker.alive else (0, 0)


class Session:
    """A rollout in a worker: its access to the tools, and its turns."""

    def __init__(self, rollout: Rollout, pool: WorkerPool, worker: Worker, patience: Patience) -> None:
        self._rollout = rollout
        self._pool = pool
        self._worker = worker
        self._patience = patience
        self._admission = contextlib.ExitStack()
        self._asked: asyncio.Task[dict[str, Any]] | None = None
        worker.rollouts[rollout.id] = self._count

    async def begin(self, door: ToolEndpoint, policy: str | None) -> None:
        """Give the worker access to the rollout's tools; the planner sees ``policy``."""
        token = self._admission.enter_context(door.admit(self._rollout))
        try:
            self._begin("open", door=door.url, token=token, policy=policy)
            answer = await self._answer()
        except BaseException:
            await self.close()
            raise
        if "error" in answer:
            await self.close()
            raise_fault(answer["error"])

    async def turn(self, text: str) -> dict[str, Any]:
        """Play a turn. Raises ``ModelError`` if nothing happens within the time limit."""
        self._begin("turn", text=text)
        return await self._answer()

    def _begin(self, op: str, **fields: Any) -> None:
        self._asked = asyncio.ensure_future(self._worker.ask(op, rollout=self._rollout.id, **fields))
        self._asked.add_done_callback(_seen)

    async def _answer(self) -> dict[str, Any]:
        assert self._asked is not None, "_begin was called"
        happened = -1
        while not self._asked.done():
            if happened == self._happened:
                limit = self._patience.turn
                raise ModelError(
                    f"no model call and no tool call of a turn ended within {limit:g} s",
                    place="FastWorkflow",
                    retryable=True,
                )
            happened = self._happened
            # not cancelled with its waiter: close() cancels the turn in order
            await asyncio.wait({self._asked}, timeout=self._patience.turn)
        return self._asked.result()

    @property
    def _happened(self) -> int:
        """Count of model calls and tool calls so far."""
        episode = episode_of(self._rollout)
        return len(episode.model_calls) + len(episode.tool_calls)

    async def close(self) -> None:
        """Remove the rollout from the worker; a running turn is cancelled in the background."""
        self._worker.rollouts.pop(self._rollout.id, None)
        self._admission.close()
        self._pool.later(self._cancel())

    async def _cancel(self) -> None:
        """Cancel a running turn, and kill the worker if the turn does not end."""
        with contextlib.suppress(ModelError):  # the worker is gone
            if self._asked is not None and not self._asked.done():
                self._worker.cancelled_turns += 1
                await self._worker.ask("cancel", rollout=self._rollout.id)
                await asyncio.wait({self._asked}, timeout=self._patience.farewell)
                self._worker.cancelled_turns -= 1
                if not self._asked.done():
                    limit = self._patience.farewell
                    await self._worker.end(
                        f"a turn of another rollout did not end {limit:g} s after it was cancelled"
                    )
            await self._worker.ask("close", rollout=self._rollout.id)

    def _count(self, event: dict[str, Any]) -> None:
        """Count a model call that the worker reports."""
        if event["event"] != "model_call":
            return
        cost = event["cost"]
        usage = Usage(
            calls=1,
            input_tokens=event["input_tokens"],
            cached_tokens=event["cached_tokens"],
            output_tokens=event["output_tokens"],
            reasoning_tokens=event["reasoning_tokens"],
            cost=cost or 0.0,
            unpriced_calls=1 if cost is None else 0,
        )
        self._rollout.count_usage(
            usage,
            model=event["model"],
            seconds=event["seconds"],
            started=event["started"],
            finish_reason=event["finish_reason"],
        )


def _seen(asked: asyncio.Task[dict[str, Any]]) -> None:
    """Retrieve the exception, so that asyncio does not log it if nobody waits any more."""
    if not asked.cancelled():
        asked.exception()


_INPUT = {"ContextWindowExceededError", "ContentPolicyViolationError"}
_SETUP = {
    "AuthenticationError",
    "LMAuthError",
    "LMBillingError",
    "LMConfigurationError",
    "LMNotConfiguredError",
    "LMUnsupportedModelError",
    "NotFoundError",
    "PermissionDeniedError",
}
_SETUP_STATUS = {401, 402, 403, 404}
_FINAL_STATUS = {400, 422}


def raise_fault(fault: Mapping[str, Any]) -> NoReturn:
    """Raise a fault that the worker reported: ``ModelError`` for models and tools, else ``AgentError``."""
    text = redact(f"{fault['name']}: {fault['text']}")
    if fault["kind"] == "agent":
        raise AgentError(f"FastWorkflow failed: {text}")
    status = fault.get("status")
    status = status if isinstance(status, int) else None
    place = "FastWorkflow"
    if fault["name"] in _INPUT or status == 413:
        raise ModelInputError(f"a model refuses the conversation: {text}", place=place, status=status)
    if fault["name"] in _SETUP or status in _SETUP_STATUS:
        raise ModelSetupError(
            f"a model cannot be called: {text}",
            place=place,
            remedy="Check the models in LLM_* and their keys.",
            status=status,
        )
    raise ModelError(
        f"a model did not answer: {text}" if fault["kind"] == "model" else text,
        place=place,
        status=status,
        retryable=status not in _FINAL_STATUS,
    )
