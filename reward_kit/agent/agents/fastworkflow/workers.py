"""Worker processes that play rollouts with FastWorkflow.

A worker speaks JSON lines on its standard streams; ``worker.py`` documents the protocol."""

from __future__ import annotations

import asyncio
import collections
import itertools
import json
import logging
import os
import signal
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.redaction import HIDDEN, redact
from reward_kit.errors import ModelError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    Answer = dict[str, Any]

logger = logging.getLogger(__name__)

LONGEST_LINE = 64 * 1024 * 1024
LAST_LINES = 12
"""Lines of a worker's standard error in the message when it exits unexpectedly."""
READY = 0
"""The ``id`` of the answer that a worker gives when it has started."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits for workers, in seconds.

    ``start``: until a process is ready. ``turn``: until the next model call or tool call of a turn ends.
    ``farewell``: until a cancelled turn ends; since killing the process loses other rollouts, this is long
    enough for a slow model's answer.
    """

    start: float = 300.0
    turn: float = 900.0
    farewell: float = 120.0


class WorkerLostError(ModelError):
    """A worker exited, or was killed because a turn did not end; its rollouts can be replayed."""

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
        self.rollouts: dict[str, Callable[[Answer], None]] = {}
        self._command = command
        self._environment = {**environment, "TMPDIR": str(folder)}
        self._folder = folder
        self._hidden = [secret.encode() for secret in hidden if secret]
        self._patience = patience
        self._process: asyncio.subprocess.Process | None = None
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count(1)
        self._last_lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._fault: str | None = "it was not started"
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def alive(self) -> bool:
        """True while it takes requests."""
        return self._fault is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises ``ModelSetupError`` if it does not start."""
        try:
            self._process = process = await asyncio.create_subprocess_exec(
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
            raise ModelSetupError(f"cannot be started: {error}", place="FastWorkflow") from error
        assert process.stdout is not None and process.stderr is not None, "both are pipes"  # noqa: PT018
        self._fault = None
        self.run(self._listen(process, process.stdout, self.run(self._collect_errors(process.stderr))))
        async with AsyncExitStack() as failed:
            failed.push_async_callback(self.end, "it did not start")
            try:
                async with asyncio.timeout(self._patience.start):
                    await self._answer_to(READY)
            except (TimeoutError, WorkerLostError) as error:
                late = isinstance(error, TimeoutError)
                fault = f"not ready after {self._patience.start:g} s" if late else self._fault
                raise ModelSetupError(f"a worker does not start: {fault}", place="FastWorkflow") from error
            failed.pop_all()

    async def ask(self, op: str, **fields: Any) -> Answer:
        """Send a request and return the answer. Raises ``WorkerLostError`` if the process is gone."""
        if self._fault is not None:
            raise WorkerLostError(self._fault)
        assert self._process is not None and self._process.stdin is not None, "it has started"  # noqa: PT018
        number = next(self._numbers)
        self._process.stdin.write(f"{json.dumps({'id': number, 'op': op, **fields})}\n".encode())
        return await self._answer_to(number)

    async def end(self, fault: str) -> None:
        """Kill the process group; pending requests fail with ``fault``."""
        self._lose(fault)
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        others = self._tasks - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a coroutine in the background, at most until the worker ends."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer_to(self, number: int) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            return await answer
        finally:
            del self._waiting[number]

    async def _listen(
        self, process: asyncio.subprocess.Process, lines: asyncio.StreamReader, errors: asyncio.Task[None]
    ) -> None:
        try:
            async for line in lines:
                self._hear(json.loads(self._without_secrets(line)))
        except ValueError as error:
            await self.end(f"a worker wrote an invalid line: {error}")
            return
        code = await process.wait()
        await asyncio.wait({errors}, timeout=1.0)  # a child may keep the pipe open
        said = "; ".join(line for line in self._last_lines if line.strip())
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._lose(f"a worker exited unexpectedly ({how})" + (f": {said}" if said else ""))

    def _hear(self, message: Answer) -> None:
        if "event" in message:
            listener = self.rollouts.get(message["rollout"])
            if listener is not None:
                listener(message)
        else:
            waiting = self._waiting.get(message["id"])
            if waiting is not None and not waiting.done():
                waiting.set_result(message)

    async def _collect_errors(self, lines: asyncio.StreamReader) -> None:
        async for line in lines:
            text = redact(self._without_secrets(line).decode(errors="replace").rstrip())
            self._last_lines.append(text[-300:])
            logger.debug("worker %s: %s", self.pid, text)

    def _without_secrets(self, line: bytes) -> bytes:
        for secret in self._hidden:
            line = line.replace(secret, HIDDEN.encode())
        return line

    def _lose(self, fault: str) -> None:
        self._fault = self._fault or fault
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(WorkerLostError(self._fault))


class WorkerPool:
    """``size`` workers; a lost one is replaced when it is needed again."""

    def __init__(self, make: Callable[[], Worker], size: int) -> None:
        self.workers = [make() for _ in range(size)]
        self._make = make
        self._locks = [asyncio.Lock() for _ in range(size)]

    async def open(self) -> None:
        """Start all workers. Raises ``ModelSetupError`` if one does not start."""
        try:
            async with asyncio.TaskGroup() as starts:
                for worker in self.workers:
                    starts.create_task(worker.start())
        except* ModelSetupError as errors:
            raise errors.exceptions[0] from None

    async def take(self) -> Worker:
        """Return the worker with the fewest rollouts, restarted if it is lost."""
        loads = [len(worker.rollouts) if worker.alive else 0 for worker in self.workers]
        place = loads.index(min(loads))
        async with self._locks[place]:
            if not self.workers[place].alive:
                worker = self._make()
                await worker.start()
                self.workers[place] = worker
            return self.workers[place]

    async def close(self) -> None:
        """Kill all workers."""
        await asyncio.gather(*(worker.end("the evaluation is over") for worker in self.workers))
