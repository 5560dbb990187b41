"""Starting a process whose pipes end with it, also where children of its own hold them open.

What a tool starts may outlive the process that plays. asyncio waits for the end of all pipes, in
some versions of Python even where it is asked to wait for the process alone.
"""

from __future__ import annotations

import asyncio
from asyncio import BaseTransport, SubprocessTransport
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol

LONGEST_READ = 2**24
"""Bytes that are read at a time."""
GRACE = 1.0
"""Seconds to read what a process has said that has ended, where its pipe goes on."""


class _PipesEndWithIt(SubprocessStreamProtocol):
    _process: SubprocessTransport

    def connection_made(self, transport: BaseTransport) -> None:
        assert isinstance(transport, SubprocessTransport)
        self._process = transport
        super().connection_made(transport)

    def process_exited(self) -> None:
        super().process_exited()
        asyncio.get_running_loop().call_later(GRACE, self._close_pipes)

    def _close_pipes(self) -> None:
        for number in (0, 1):
            pipe = self._process.get_pipe_transport(number)
            if pipe is not None:
                pipe.close()


async def start_process(*command: str) -> Process:
    """Start ``command`` in a session of its own, with pipes to its input and from its output.

    In a session of its own, since Ctrl-C is for this process, which ends the others in good order.
    """
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        lambda: _PipesEndWithIt(limit=LONGEST_READ, loop=loop),
        *command,
        stdin=PIPE,
        stdout=PIPE,
        stderr=None,
        start_new_session=True,
    )
    return Process(transport, protocol, loop)
