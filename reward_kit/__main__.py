"""``python -m reward_kit`` is the command ``reward-kit``."""

from __future__ import annotations

import sys

from reward_kit.cli import main

if __name__ == "__main__":
    sys.exit(main())
