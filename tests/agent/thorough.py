"""How often a random test tries: all of the times in ``make test-thorough``, a part of them otherwise."""

import os

THOROUGH = bool(os.environ.get("REWARD_KIT_THOROUGH"))


def often(full: int, quick: int | None = None) -> int:
    """``full`` in a thorough run, else ``quick``, a fifth of it by default."""
    return full if THOROUGH else quick or max(full // 5, 10)
