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
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.redaction import hide, redact
from reward_kit.errors import ModelError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
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
    """Seconds until a process is ready (``start``), and until the next call of a ``turn`` ends."""

    start: float = 300.0
    turn: float = 900.0


class WorkerLostError(ModelError):
    """A worker exited, or was killed because a turn hung; its rollouts can be replayed."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault, place="FastWorkflow", retryable=True)


class Worker:
    """One process. ``rollouts`` maps the ids of its rollouts to listeners for their events.

    ``hidden`` are secrets of its environment that this process's does not have; they are removed from its
    output.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, *, hidden: Sequence[str]
    ) -> None:
        self.rollouts: dict[str, Callable[[Answer], None]] = {}
        self._command = command
        self._environment = {**environment, "TMPDIR": str(folder)}
        self._folder = folder
        self._hidden = hidden
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Future[Any] | None = None
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count(READY + 1)
        self._last_lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._fault: str | None = "it was not started"

    @property
    def alive(self) -> bool:
        """True while it takes requests."""
        return self._fault is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self, limit: float) -> None:
        """Start the process, and wait at most ``limit`` seconds until it is ready.

        Raises ``ModelSetupError`` if it does not start.
        """
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
        self._fault = None
        self._reading = asyncio.ensure_future(self._read(process))
        try:
            async with asyncio.timeout(limit):
                await self._answer_to(READY)
        except (TimeoutError, WorkerLostError) as error:
            fault = f"not ready after {limit:g} s" if isinstance(error, TimeoutError) else error.fault
            await self.end(fault)
            raise ModelSetupError(f"a worker does not start: {fault}", place="FastWorkflow") from error

    def send(self, op: str, **fields: Any) -> int:
        """Send a request and return its number. Raises ``WorkerLostError`` if the process is gone."""
        if self._fault is not None or self._process is None or self._process.stdin is None:
            raise WorkerLostError(self._fault or "it was not started")
        number = next(self._numbers)
        self._process.stdin.write(f"{json.dumps({'id': number, 'op': op, **fields})}\n".encode())
        return number

    async def ask(self, op: str, **fields: Any) -> Answer:
        """Send a request and return the answer. Raises ``WorkerLostError`` if the process is gone."""
        return await self._answer_to(self.send(op, **fields))

    async def end(self, fault: str) -> None:
        """Kill the process group; pending requests fail with ``fault``."""
        self._lose(fault)
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _answer_to(self, number: int) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            return await answer
        finally:
            del self._waiting[number]

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None and process.stderr is not None, "both are pipes"  # noqa: PT018
        errors = asyncio.ensure_future(self._collect_errors(process.stderr))
        try:
            async for line in process.stdout:
                self._hear(json.loads(hide(line.decode(), self._hidden)))
            await process.wait()
            await asyncio.wait({errors}, timeout=1.0)  # a child may keep the pipe open
        finally:
            errors.cancel()
            said = "; ".join(line for line in self._last_lines if line.strip())
            how = "an invalid line" if process.returncode is None else f"exit code {process.returncode}"
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
            text = redact(line.decode(errors="replace").rstrip(), self._hidden)
            self._last_lines.append(text[-300:])
            logger.debug("worker %s: %s", self.pid, text)

    def _lose(self, fault: str) -> None:
        self._fault = self._fault or fault
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(WorkerLostError(self._fault))


class WorkerPool:
    """``size`` workers; a lost one is replaced when it is needed again."""

    def __init__(self, make: Callable[[], Worker], size: int, start_limit: float) -> None:
        self.workers = [make() for _ in range(size)]
        self._make = make
        self._start_limit = start_limit
        self._locks = [asyncio.Lock() for _ in range(size)]

    async def open(self) -> None:
        """Start all workers. Raises ``ModelSetupError`` if one does not start."""
        try:
            async with asyncio.TaskGroup() as starts:
                for worker in self.workers:
                    starts.create_task(worker.start(self._start_limit))
        except* ModelSetupError as errors:
            raise errors.exceptions[0] from None

    async def take(self) -> Worker:
        """Return the worker with the fewest rollouts, restarted if it is lost."""
        loads = [len(worker.rollouts) if worker.alive else 0 for worker in self.workers]
        place = loads.index(min(loads))
        async with self._locks[place]:
            if not self.workers[place].alive:
                self.workers[place] = self._make()
                await self.workers[place].start(self._start_limit)
            return self.workers[place]

    async def close(self) -> None:
        """Kill all workers."""
        await asyncio.gather(*(worker.end("the evaluation is over") for worker in self.workers))
