"""``python -m reward_kit`` is the command ``reward-kit``."""

from __future__ import annotations

import os
import signal
import sys


def _end(*_: object) -> None:
    os.write(2, b"Interrupted.\n")
    os._exit(130)


def main() -> int:
    """The command; Ctrl-C while it is imported, which takes longest, ends the process without a traceback."""
    is_python_s = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_python_s:
        signal.signal(signal.SIGINT, _end)
    from reward_kit import cli

    if is_python_s:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
