"""The process that forks workers, and what runs in it."""

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
from contextlib import suppress
from itertools import count
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from reward_kit.agent.base.encoding import adapter_of
from reward_kit.agent.base.worker_thread import Waiters
from reward_kit.agent.evaluation.protocol import Report, Setup, WorkerCall
from reward_kit.agent.rollout.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

MOST_FILES = 4096
"""The highest descriptor that a command may have open when it forks."""
_END = struct.Struct("!ii")
"""The report of a worker's end: its number among those of the server, and its exit code."""
_PROGRAM = (
    "import gc, sys; gc.disable(); sys.path[:] = sys.argv[4:]; "
    "from reward_kit.agent.evaluation import fork_server, worker; "
    "fork_server.serve(int(sys.argv[1]), worker.main, int(sys.argv[2]), sys.argv[3])"
)
_PR_SET_PDEATHSIG = 1


class ForkServer:
    """A process that forks workers, each in a separate session, so that Ctrl-C does not reach it.

    If it ends unexpectedly, the next ``fork`` starts it again; ``starts`` counts.

    With ``fork``, which is ``worker.main``, it is forked from this process, which must not have imported
    anything of a bundle. Without, or in a process with threads, it is a new Python.
    It imports a large ``library``, if one is named, so that no worker has to.
    """

    def __init__(self, library: str, *, fork: Callable[[socket.socket], NoReturn] | None = None) -> None:
        self.starts = 0
        self._library = library
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
                    serve(theirs.fileno(), fork, parent, self._library)
            else:
                theirs.set_inheritable(True)
                given = str(theirs.fileno()), str(parent), self._library
                program = [sys.executable, "-c", _PROGRAM, *given, *sys.path]
                self._pid = os.posix_spawn(sys.executable, program, os.environ)

    def fork(self) -> tuple[socket.socket, asyncio.Future[int]]:
        """Start a worker; returns the socket to it, and its end.

        That is the exit code, negative for a signal, or a ``ConnectionError``. The socket is closed at
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
            self._ends.fail_all(ConnectionError("ended with the process that forks workers"))


def end_with(parent: int) -> None:
    """Have Linux kill this process as soon as ``parent`` has ended, even in C code."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(1)


def serve(descriptor: int, play: Callable[[socket.socket], NoReturn], parent: int, library: str) -> NoReturn:
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
    found = resolve_name(library) if library else None  # this and what follows starts no thread
    if callable(found):
        found()
    for kind in (Trace, Setup, WorkerCall, Report):
        adapter_of(kind)  # the first message would take longer
    gc.freeze()  # a collection in a worker would copy all pages
    gc.enable()
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
