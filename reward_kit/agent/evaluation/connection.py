"""Calls to a worker process: messages over a socket pair, many calls at a time.

``worker`` is the other end. Subclasses of ``Worker`` know how to reach a process: ``WorkerProcess`` on this
machine, an actor on a Ray cluster.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.files import undone_by
from reward_kit.agent.base.worker_thread import Waiters
from reward_kit.agent.evaluation.protocol import Report, WorkerCall, decoded, encoded
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.evaluation.fork_server import ForkServer
    from reward_kit.agent.evaluation.protocol import Account, PlayRequest, Setup

LONGEST_LINE = 2**30
"""Bytes of the longest line: the description of many rows."""
CLOSE_GRACE = 15.0
"""Seconds that a process has to end in order."""
DRAIN = 1.0
"""Seconds to read the last messages of a process whose socket a child process keeps open."""


class WorkerDiedError(Exception):
    """A process has ended, with the call that it was busy with.

    ``began`` says that it had loaded everything, ``at`` what the rollout was doing, if it was watched.
    ``server`` is set if it ended with the process that forks workers: the number of that.
    """

    def __init__(
        self, reason: str, *, began: bool = False, at: str | None = None, server: int | None = None
    ) -> None:
        super().__init__(reason)
        self.began = began
        self.at = at
        self.server = server


def kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


@dataclass(slots=True, eq=False)
class _OpenCall:
    """A call that waits for its answer."""

    account: Account | None
    at: str | None = None


class Worker(ABC):
    """A process that answers calls; ``note`` receives its messages for people.

    ``heard`` is the time of its last sign of life; once it is ``ready`` it has loaded everything, so that it
    plays what it is called for. ``changed`` says what a rollout has changed for all others in the process.
    ``died`` says how it ended, ``server`` with which process that forks workers, if with one.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self.heard = time.monotonic()
        self.ready = False
        self.changed: str | None = None
        self.died: str | None = None
        self.server: int | None = None
        self._reason: str | None = None
        self._note = note
        self._calls: dict[int, _OpenCall] = {}
        self._answers: Waiters[int, Report] = Waiters()
        self._number = 0

    @abstractmethod
    async def start(self, setup: Setup) -> None:
        """Start the process; it loads the bundle on its first call. Raises ``WorkerDiedError``."""

    @abstractmethod
    def write(self, data: bytes) -> None:
        """Send bytes to the process; nothing happens if it is gone."""

    @abstractmethod
    def kill(self, reason: str) -> None:
        """End the process at once."""

    @abstractmethod
    async def close(self) -> None:
        """Let the process end in order, or kill it; its messages until then still count."""

    @property
    def load(self) -> int:
        return len(self._calls)

    @property
    def memory(self) -> int:
        """Bytes of memory that the process holds, as far as that is known."""
        return 0

    async def call(self, request: PlayRequest | None = None, account: Account | None = None) -> Report:
        """The answer to a call: a description, or a played rollout.

        Raises ``RewardKitError`` and ``WorkerDiedError``. If this is cancelled, so is the call, unless its
        answer is on its way: then that is returned.
        """
        if self.died is not None:
            raise WorkerDiedError(self.died, server=self.server)
        self._number += 1
        number, call = self._number, _OpenCall(account)
        self._calls[number] = call
        answer = self._answers.wait(number)
        try:
            self.write(encoded(WorkerCall(number, request)))
            try:
                report = await asyncio.shield(answer)
            except asyncio.CancelledError:
                self.write(encoded(WorkerCall(number, cancel=True)))
                await asyncio.wait({answer}, timeout=CLOSE_GRACE)
                if not answer.done() or answer.exception() or answer.result().played is None:
                    raise
                report = answer.result()
        except WorkerDiedError as death:
            raise WorkerDiedError(str(death), began=self.ready, at=call.at, server=self.server) from None
        finally:
            del self._calls[number]
        if report.error is not None:
            raise RewardKitError.from_json(report.error)
        if report.crash is None and not report.cancelled:
            return report
        crash = f"failed: {report.crash}" if report.crash else "cancelled the task of the rollout"
        raise WorkerDiedError(crash, began=self.ready, at=call.at)

    def prepare(self) -> None:
        """Have the process load everything, without an answer; ``call`` raises what comes of that."""
        self.write(encoded(WorkerCall(0)))

    def receive(self, report: Report) -> None:
        self.heard = time.monotonic()
        for number, role, model, usage in report.used:
            call = self._calls.get(number)
            if call is not None and call.account is not None:
                call.account.used(role, usage, model)
        if report.note is not None:
            self._note(report.note)
        self.ready = self.ready or report.ready
        self.changed = report.changed or self.changed
        if (call := self._calls.get(report.id)) is not None:
            if report.at is None:
                self._answers.answer(report.id, report)
            call.at = report.at or call.at

    def _lost(self, reason: str) -> None:
        self.died = reason
        self._answers.fail_all(WorkerDiedError(reason))


class WorkerProcess(Worker):
    """A worker on this machine."""

    def __init__(self, note: Callable[[str], None], server: ForkServer) -> None:
        super().__init__(note)
        self._server = server

    async def start(self, setup: Setup) -> None:
        connection, self._end = self._server.fork()
        self._start = self._server.starts
        self._reader, self._writer = await asyncio.open_connection(sock=connection, limit=LONGEST_LINE)
        with undone_by(self._writer.close):
            self.write(encoded(setup))
            hello = b""
            with suppress(ConnectionResetError):  # the setup was not read
                hello = await self._reader.readline()
            if not hello:
                raise WorkerDiedError("could not be started", server=self._start)
        self._pid = decoded(Report, hello).pid or 0
        self._watching = asyncio.create_task(self._watch())

    @property
    def memory(self) -> int:
        with suppress(OSError, IndexError):  # it has ended
            return int(Path(f"/proc/{self._pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return 0

    def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(data)

    def kill(self, reason: str) -> None:
        self._reason = self._reason or reason
        kill_group(self._pid)

    async def close(self) -> None:
        if not self._writer.is_closing():
            self._writer.write_eof()
        await asyncio.wait({self._watching}, timeout=CLOSE_GRACE)
        if not self._watching.done():
            self.kill("did not end")
            await self._watching

    async def _watch(self) -> None:
        """Read until the process ends; one of its children may keep its socket open."""
        with self._answers:
            reading = asyncio.create_task(self._read())
            either: set[asyncio.Future[Any]] = {reading, self._end}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait(either, timeout=DRAIN)
            if not self._end.done():
                self.kill("was ended, since other code closed its socket")
                await asyncio.wait({self._end})
            reading.cancel()
            self._writer.close()
            if (fault := self._end.exception()) is not None:  # of the process that forks
                self.server = self._start
            kill_group(self._pid)  # children that it has left behind, and itself where the system has not
            code = 0 if fault is not None else self._end.result()
            ended = (
                f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            self._lost(self._reason or (str(fault) if fault else ended))

    async def _read(self) -> None:
        with self._answers:
            try:
                while line := await self._reader.readline():
                    report = decoded(Report, line)
                    if report.tail:
                        report.attach(await self._reader.readexactly(report.tail))
                    self.receive(report)
            except ValueError:  # no message of ours
                self.kill("was ended, since other code wrote into its socket")
            except (OSError, EOFError):
                pass
