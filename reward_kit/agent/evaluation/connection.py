"""Calls to a worker process: messages over a socket pair, many calls at a time.

``worker`` is the other end. Subclasses of ``Worker`` know how to reach a process: ``WorkerProcess`` on this
machine, an actor on a Ray cluster.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.worker_thread import Waiters
from reward_kit.agent.evaluation.protocol import Call, Report, decoded, encoded
from reward_kit.agent.evaluation.signals import memory_of
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    from reward_kit.agent.evaluation.protocol import Account, PlayRequest, Setup

LONGEST_LINE = 2**30
"""Bytes of the longest line: the description of many rows."""
CLOSE_GRACE = 15.0
"""Seconds that a process has to end in order."""
DRAIN = 1.0
"""Seconds to read the last words of a process whose socket a child of its own keeps open."""


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
class _Call:
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
        self._note = note
        self._calls: dict[int, _Call] = {}
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
        """Let the process end in order, or kill it; what it says until then still counts."""

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
        number, call = self._number, _Call(account)
        self._calls[number] = call
        answer = self._answers.wait(number)
        try:
            self.write(encoded(Call(number, request)))
            try:
                report = await asyncio.shield(answer)
            except asyncio.CancelledError:
                self.write(encoded(Call(number, cancel=True)))
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
            call.at = report.at or call.at
            if report.is_answer:
                self._answers.answer(report.id, report)

    def _lost(self, reason: str) -> None:
        self.died = reason
        self._answers.fail_all(WorkerDiedError(reason))


class WorkerProcess(Worker):
    """A worker on this machine."""

    _reason: str | None = None

    def __init__(self, note: Callable[[str], None], server: ForkServer) -> None:
        super().__init__(note)
        self._server = server

    async def start(self, setup: Setup) -> None:
        connection, self._end = self._server.fork()
        self._start = self._server.starts
        self._reader, self._writer = await asyncio.open_connection(sock=connection, limit=LONGEST_LINE)
        if not (hello := await self._reader.readline()):
            self._writer.close()
            raise WorkerDiedError("could not be started", server=self._start)
        self._pid = decoded(Report, hello).pid or 0
        self._watching = asyncio.create_task(self._watch())
        self.write(encoded(setup))

    @property
    def memory(self) -> int:
        return memory_of(self._pid)

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
        kill_group(self._pid)  # children that it has left behind

    async def _watch(self) -> None:
        """Read until the process ends, whose socket may stay open in a child of its own."""
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
                kill_group(self._pid)  # where the system has not
            code = 0 if fault is not None else self._end.result()
            ended = (
                f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            self._lost(self._reason or (str(fault) if fault else ended))

    async def _read(self) -> None:
        with self._answers:
            try:
                while line := await self._reader.readline():
                    self.receive(decoded(Report, line))
            except ValueError:  # no message of ours
                self.kill("was ended, since other code wrote into its socket")
            except (OSError, EOFError):
                pass


MOST_FILES = 4096
"""The highest descriptor that a command may have open when it forks."""
_END = struct.Struct("!ii")
"""The report of a worker's end: its number among those of the server, and its exit code."""
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[4:]; from reward_kit.agent.evaluation import connection, worker; "
    "connection.serve(int(sys.argv[1]), worker.main, int(sys.argv[2]), litellm=bool(sys.argv[3]))"
)
_PR_SET_PDEATHSIG = 1


class ForkServerEndedError(Exception):
    """The process that forks workers has ended, and its workers with it."""


class ForkServer:
    """A process that forks workers, each in a session of its own, so that Ctrl-C does not reach it.

    If it ends unexpectedly, the next ``fork`` starts it again; ``starts`` counts.

    With ``fork``, which is ``worker.main``, it is forked from this process, which must not have imported
    anything of a bundle. Without, or in a process with threads, it is a new Python with this ``environment``.
    It imports SQLAlchemy, and with ``litellm`` LiteLLM, so that no worker has to.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        fork: Callable[[socket.socket], NoReturn] | None = None,
        litellm: bool = False,
    ) -> None:
        self.starts = 0
        self._environment = environment
        self._litellm = litellm
        self._start(fork)

    def _start(self, fork: Callable[[socket.socket], NoReturn] | None = None) -> None:
        self.starts += 1
        self._ends: Waiters[int, int] = Waiters()
        self._numbers = count()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._control, theirs = socket.socketpair()
        with theirs:
            parent = os.getpid()
            if fork is not None and threading.active_count() == 1:
                sys.stdout.flush()
                self._pid = os.fork()
                if not self._pid:
                    serve(theirs.fileno(), fork, parent, litellm=self._litellm)
            else:
                theirs.set_inheritable(True)
                given = str(theirs.fileno()), str(parent), "litellm" if self._litellm else ""
                program = [sys.executable, "-c", _PROGRAM, *given, *sys.path]
                self._pid = os.posix_spawn(sys.executable, program, self._environment or os.environ)

    def fork(self) -> tuple[socket.socket, asyncio.Future[int]]:
        """Start a worker; returns the socket to it, and its end.

        That is the exit code, negative for a signal, or a ``ForkServerEndedError``. The socket is closed at
        the other end if no worker could start.
        """
        if self._control.fileno() < 0:
            self._start()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._control, self._read)
        ours, theirs = socket.socketpair()
        end = self._ends.wait(next(self._numbers))
        with theirs, suppress(OSError):  # a server that has ended
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        return ours, end

    def _read(self) -> None:
        data = b""
        with self._ends:
            with suppress(OSError):  # it has ended with requests of ours unread
                data = self._control.recv(_END.size, socket.MSG_WAITALL)
            if len(data) == _END.size:
                self._ends.answer(*_END.unpack(data))
            else:
                self.close()

    def close(self) -> None:
        """End the server; its workers end when their sockets are closed. May be called again."""
        if self._control.fileno() >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._control)
            self._control.close()
            with suppress(ChildProcessError):  # this process ignores its children
                os.waitpid(self._pid, 0)
            self._ends.fail_all(ForkServerEndedError("ended with the process that forks workers"))


def end_with(parent: int) -> None:
    """Have the system end this process as soon as ``parent`` has ended, whatever it does then (on Linux)."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)


def serve(
    descriptor: int, play: Callable[[socket.socket], NoReturn], parent: int, *, litellm: bool = False
) -> NoReturn:
    """Fork a process that runs ``play`` for each socket that arrives at ``descriptor``; ends with it.

    Of this process's files the workers get stderr alone, which is also their standard output. All end with
    the process ``parent``.
    """
    os.setsid()
    end_with(parent)
    with open(os.devnull) as nothing:  # noqa: PTH123 - as a descriptor
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, MOST_FILES)
    control = socket.socket(fileno=descriptor)
    import reward_kit.agent.database.sqlalchemy_api  # noqa: F401 - no worker has to import SQLAlchemy

    if litellm:
        from reward_kit.agent.models.litellm_library import import_litellm

        import_litellm()  # it starts no thread
    gc.freeze()  # a collection in a worker would copy all pages
    end, bell = socket.socketpair()  # it rings as a worker ends
    bell.setblocking(False)
    signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    server, numbers, workers = os.getpid(), count(), dict[int, int]()
    while True:
        ready = select.select([control, end], [], [])[0]
        if end in ready:
            end.recv(64)
        if control in ready:
            data, given, *_ = socket.recv_fds(control, 1, 1)
            if not data:
                os._exit(0)
            with socket.socket(fileno=given[0]) as connection:
                number, worker = next(numbers), -1
                with suppress(OSError):  # too many processes, say
                    worker = os.fork()
                if not worker:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    signal.set_wakeup_fd(-1)
                    control.close()
                    os.setsid()
                    end_with(server)
                    play(connection)
                workers[worker] = number
        with suppress(ChildProcessError, OSError):
            if -1 in workers:
                control.sendall(_END.pack(workers.pop(-1), 1))
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                control.sendall(_END.pack(workers.pop(ended[0]), os.waitstatus_to_exitcode(ended[1])))
