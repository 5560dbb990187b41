"""A command that another process forks: how it is asked for, and a stand-in for a program.

It imports little, for the stand-in is to start at once; ``command.py`` has the process that forks.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence


def connected(address: str) -> socket.socket:
    """A connection to the process that forks. Raises ``OSError`` if there is none."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


def ask(
    connection: socket.socket, line: Sequence[str], cwd: str, env: Mapping[str, str], files: Sequence[int]
) -> Iterator[int]:
    """Its process id as soon as it runs, then its exit code; ``files`` become its standard streams."""
    socket.send_fds(connection, [b"\n"], files)
    connection.sendall(json.dumps({"line": line, "cwd": cwd, "env": dict(env)}).encode() + b"\n")
    with connection.makefile("rb", buffering=0) as answers:
        for _ in range(2):
            yield int(answers.readline())


def stand_in(address: str, *arguments: str) -> None:
    """Run Python with these arguments and those of this process, and exit as it does."""
    line = [*arguments, *sys.argv[1:]]
    told = ask(connected(address), line, os.getcwd(), os.environ, [0, 1, 2])  # noqa: PTH109 - pathlib is slow to import
    command = next(told)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(command, number))
    code = next(told)
    sys.exit(code if code >= 0 else 128 - code)
