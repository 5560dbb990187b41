"""Run a command, and end it with all its children when standard input closes.

A separate program: ``python -I guard.py COMMAND ...``. The evaluation keeps its standard input open.
However the evaluation ends, by SIGKILL included, the system closes the pipe, so the model's server does not
outlive it. The exit code is the command's (128 + the number of a signal), or 127 if it cannot be started.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress

GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
PAUSE = 0.2


def main(command: list[str]) -> int:
    """Run ``command`` until it exits, standard input closes, or SIGTERM arrives."""
    try:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)  # noqa: S603 - see backends
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    asked: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while server.poll() is None and not asked and not select.select([sys.stdin], [], [], PAUSE)[0]:
        pass
    _signal_group(server, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        server.wait(GRACE)
    _signal_group(server, signal.SIGKILL)  # also children that the command has left
    code = server.wait()
    return code if code >= 0 else 128 - code


def _signal_group(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
