"""Runs a command, and ends it and all its children once nobody holds the other end of standard input.

A program of its own, run as a plain file by the evaluation's Python: ``python -I guard.py COMMAND ...``. The
evaluation keeps a pipe to its standard input open and writes nothing. However the evaluation ends, by SIGKILL
included, the system closes the pipe, and the model's server does not outlive it. The exit code is the
command's (128 + the signal's number where one ended it); 127: it could not be started.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

GRACE = 5.0
"""Seconds that the command has after SIGTERM."""
PAUSE = 0.2
PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    """Run ``command`` to its end, or until standard input is closed."""
    try:
        server = subprocess.Popen(  # noqa: S603 - the command line that the evaluation has made
            command,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        return 127
    asked: list[int] = []
    # Set only now: an ignored or handled signal would be so in the command as well.
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while server.poll() is None and not asked:
        if select.select([sys.stdin], [], [], PAUSE)[0]:
            break
    return _ended(server)


def _ended(server: subprocess.Popen[bytes]) -> int:
    """End the command and whatever it has started; its exit code."""
    _tell(server, signal.SIGTERM)
    deadline = time.monotonic() + GRACE
    while server.poll() is None and time.monotonic() < deadline:
        time.sleep(PAUSE / 4)
    _tell(server, signal.SIGKILL)  # also what the command has left behind
    code = server.wait()
    return code if code >= 0 else 128 - code


def _tell(server: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the whole process group, which outlives its first process."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, number)


def _end_with_parent() -> None:
    """In the new process: SIGKILL for it if this guard should be killed."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
