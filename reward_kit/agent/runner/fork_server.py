"""The process that forks the workers: what they import is imported once, before any thread exists.

::

    server = ForkServer()
    connection = server.fork()        # a socket to a new worker, which first says its process id
    code = await server.end_of(pid)
    server.close()
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
from collections import defaultdict
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

MOST_FILES = 4096
"""The highest descriptor that a command may have open when it forks."""
_END = struct.Struct("!ii")
"""The report of a worker's end: its process id and its exit code."""
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; from reward_kit.agent.runner import fork_server, worker; "
    "fork_server.serve(int(sys.argv[1]), worker.main, litellm=bool(sys.argv[2]))"
)


class ForkServer:
    """A process that forks workers, each in a session of its own, so that Ctrl-C does not reach it.

    With ``fork``, which is ``worker.main``, it is forked from this process, which must not have imported
    anything of a bundle. Without, or in a process with threads, it is a new Python with this ``environment``.
    With ``litellm`` it imports LiteLLM, so that no worker has to.
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        *,
        fork: Callable[[socket.socket], NoReturn] | None = None,
        litellm: bool = False,
    ) -> None:
        self._control, theirs = socket.socketpair()
        self._ends: dict[int, asyncio.Future[int]] = defaultdict(asyncio.Future)
        self._loop: asyncio.AbstractEventLoop | None = None
        with theirs:
            if fork is not None and threading.active_count() == 1:
                sys.stdout.flush()
                self._pid = os.fork()
                if not self._pid:
                    serve(theirs.fileno(), fork, litellm=litellm)
            else:
                theirs.set_inheritable(True)
                preload = "litellm" if litellm else ""
                program = [sys.executable, "-c", _PROGRAM, str(theirs.fileno()), preload, *sys.path]
                self._pid = os.posix_spawn(sys.executable, program, environment or os.environ)

    def fork(self) -> socket.socket:
        """Start a worker; returns the socket to it, which is closed at the other end if none could start."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._control, self._read)
        ours, theirs = socket.socketpair()
        with theirs, suppress(OSError):  # a server that has ended
            socket.send_fds(self._control, [b"f"], [theirs.fileno()])
        return ours

    async def end_of(self, pid: int) -> int:
        """Wait for the end of a worker; returns its exit code, negative for a signal."""
        return await asyncio.shield(self._ends[pid])

    def _read(self) -> None:
        data = self._control.recv(_END.size, socket.MSG_WAITALL)
        if data:
            pid, code = _END.unpack(data)
            self._ends[pid].set_result(code)
            return
        assert self._loop is not None
        self._loop.remove_reader(self._control)
        for end in self._ends.values():
            if not end.done():
                end.set_result(1)

    def close(self) -> None:
        """End the server; its workers end when their sockets are closed. May be called again."""
        if self._control.fileno() >= 0:
            if self._loop is not None:
                self._loop.remove_reader(self._control)
            self._control.close()
            with suppress(ChildProcessError):  # this process ignores its children
                os.waitpid(self._pid, 0)


def serve(descriptor: int, play: Callable[[socket.socket], NoReturn], *, litellm: bool = False) -> NoReturn:
    """Fork a process that runs ``play`` for each socket that arrives at ``descriptor``; ends with it.

    Of this process's files the workers get stderr alone, which is also their standard output.
    """
    os.setsid()
    with open(os.devnull) as nothing:  # noqa: PTH123 - as a descriptor
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    os.closerange(3, descriptor)
    os.closerange(descriptor + 1, MOST_FILES)
    control = socket.socket(fileno=descriptor)
    if litellm:
        from reward_kit.agent.models.litellm_library import import_litellm

        import_litellm()  # it starts no thread
    gc.freeze()  # a collection in a worker would copy all pages
    end, bell = socket.socketpair()  # it rings as a worker ends
    bell.setblocking(False)
    signal.set_wakeup_fd(bell.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        ready = select.select([control, end], [], [])[0]
        if end in ready:
            end.recv(64)
        if control in ready:
            data, given, *_ = socket.recv_fds(control, 1, 1)
            if not data:
                os._exit(0)
            with socket.socket(fileno=given[0]) as connection, suppress(OSError):
                if not os.fork():
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    signal.set_wakeup_fd(-1)
                    control.close()
                    os.setsid()
                    play(connection)
        with suppress(ChildProcessError, OSError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                control.sendall(_END.pack(ended[0], os.waitstatus_to_exitcode(ended[1])))
