"""``python -m reward_kit`` is the command ``reward-kit``."""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command; Ctrl-C while it is imported ends the process without a traceback."""
    here = os.getcwd()  # noqa: PTH109 - last, so that a json.py beside a bundle does not hide Python's own
    sys.path[:] = [*(entry for entry in sys.path if entry not in ("", here)), here]
    try:
        from reward_kit import cli
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)  # noqa: T201 - nothing else is imported yet
        return 130
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
