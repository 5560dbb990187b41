"""Processes that play rollouts with FastWorkflow: started, spoken to in JSON lines, watched and ended."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import logging
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.redaction import redact
from reward_kit.errors import ModelError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

logger = logging.getLogger(__name__)

LONGEST_LINE = 64 * 1024 * 1024
LAST_LINES = 12
"""Lines of a worker's standard error that are told when it ends by itself."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds that workers are waited for.

    ``start``: until a process is ready. ``turn``: for the next model call or tool call of a turn to end.
    ``silence``: without any sign of life from the process. ``farewell``: for a turn to end after it was
    called off; other rollouts are lost with the process, so this is long enough for a slow model's answer.
    """

    start: float = 300.0
    turn: float = 900.0
    silence: float = 60.0
    farewell: float = 120.0


class WorkerLostError(ModelError):
    """A worker ended, or was ended because it did not answer; its rollouts can be played again."""

    def __init__(self, fault: str) -> None:
        super().__init__(fault, place="FastWorkflow", retryable=True)


class Worker:
    """One process. ``rollouts`` holds, by id, who listens to the events of each rollout that it plays.

    ``hidden`` are secrets that its environment has and this process's has not: they are taken out of whatever
    it writes.
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
        self.called_off = 0
        """Turns that were called off and have not ended yet."""
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
        """Whether it can be asked."""
        return self._fault is None and self._ready.is_set()

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        """Start the process and wait until it is ready; ``ModelSetupError`` where it does not come up."""
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
                start_new_session=True,  # Ctrl-C at the terminal is the evaluation's to handle
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
            await self.end("not wanted any more")
            raise
        finally:
            ready.cancel()
        if not self._ready.is_set():
            fault = self._fault or f"not ready after {self._patience.start:g} s"
            await self.end(fault)
            raise ModelSetupError(f"a worker does not start: {fault}", place="FastWorkflow")
        self._tasks.append(asyncio.ensure_future(self._watch()))

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer to a request; raises ``WorkerLostError`` where none can come any more."""
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
            with contextlib.suppress(ConnectionError):  # that it has ended is told to whoever waits
                self._process.stdin.write(f"{line}\n".encode())
                await self._process.stdin.drain()
            return await answer
        finally:
            self._waiting.pop(number, None)

    async def end(self, fault: str) -> None:
        """Kill the process with all that it started; whoever waits for it gets ``fault``."""
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
            await self.end(f"a worker wrote what cannot be read: {error}")
            return
        code = await self._process.wait()
        with contextlib.suppress(asyncio.TimeoutError):  # what it still had to say, if its pipe is closed
            await asyncio.wait_for(asyncio.shield(self._tasks[1]), 1.0)
        said = "; ".join(line for line in self._last_lines if line.strip())
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        self._lose(f"a worker ended by itself ({how})" + (f": {said}" if said else ""))

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
                continue  # a line beyond all measure is left out
            if not line:
                return
            text = redact(self._without_secrets(line).decode(errors="replace").rstrip())
            self._last_lines.append(text[-300:])
            logger.debug("worker %s: %s", self.pid, text)

    async def _watch(self) -> None:
        """End a process that gives no sign of life."""
        while self._fault is None:
            try:
                await asyncio.wait_for(self.ask("ping"), self._patience.silence)
            except asyncio.TimeoutError:
                await self.end(
                    f"a worker gave no sign of life for {self._patience.silence:g} s and was ended"
                )
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
    """``size`` workers; one that is gone is replaced when it is needed again."""

    def __init__(self, make: Callable[[], Worker], size: int) -> None:
        self._make = make
        self._workers = [make() for _ in range(size)]
        self._locks = [asyncio.Lock() for _ in range(size)]
        self._background: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> list[Worker]:
        return list(self._workers)

    async def open(self) -> None:
        """Start all of them; raises ``ModelSetupError`` where one does not come up."""
        starts = [asyncio.ensure_future(worker.start()) for worker in self._workers]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            raise

    async def take(self) -> Worker:
        """The worker with the fewest rollouts, started anew if it is gone."""
        place = min(range(len(self._workers)), key=self._load)
        async with self._locks[place]:
            if not self._workers[place].alive:
                worker = self._make()
                await worker.start()
                self._workers[place] = worker
            return self._workers[place]

    def later(self, work: Any) -> None:
        """Run a coroutine beside everything else, at most until the pool is closed."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def close(self) -> None:
        """End all workers and whatever is still waiting for them."""
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(
            *tasks, *(w.end("the evaluation is over") for w in self._workers), return_exceptions=True
        )

    def _load(self, place: int) -> tuple[int, int]:
        worker = self._workers[place]
        return (worker.called_off, len(worker.rollouts)) if worker.alive else (0, 0)
