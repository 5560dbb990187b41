"""Fewer garbage collections while rollouts run."""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOCATIONS = 200_000
"""New objects between two collections; Python's own 700 means many looks at hundreds of live conversations, a
tenth of the time of a run, for next to no garbage.
"""

UNWATCHED_ALLOCATIONS = 20_000
"""The same where nobody can see how much memory the garbage holds."""

LOOK_EVERY = 0.1
"""Seconds between looks at the memory."""

GROWTH, FREE_GROWTH = 1.25, 32 << 20
"""What the memory may grow by, as a factor and in bytes on top, before garbage is looked for: tools and
rewards may leave little garbage that holds much (an exception, its frames, and a long list in one of them).
"""

_STATUS = Path("/proc/self/statm")
"""Linux has it; its second number are the resident pages."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect more rarely within, or when the memory has grown; in an event loop.

    What the process has set is put back afterwards. Where collections are off, or rarer already, they stay
    so.
    """
    before = gc.get_threshold()
    is_watched = _STATUS.exists()
    allocations = ALLOCATIONS if is_watched else UNWATCHED_ALLOCATIONS
    if not 0 < before[0] < allocations:
        yield
        return
    gc.set_threshold(allocations, *before[1:])
    watch = _Watch() if is_watched else None
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if watch is not None:
            watch.end()


class _Watch:
    """Collects garbage when the memory has grown, until it is ended."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._usual = memory_in_use()
        self._next = self._loop.call_later(LOOK_EVERY, self._look)

    def end(self) -> None:
        self._next.cancel()

    def _look(self) -> None:
        with suppress(OSError):  # too many files are open just now
            if memory_in_use() > GROWTH * self._usual + FREE_GROWTH:
                gc.collect()
                self._usual = memory_in_use()
        self._next = self._loop.call_later(LOOK_EVERY, self._look)


def memory_in_use() -> int:
    """Bytes of memory that this process has in use (resident)."""
    return int(_STATUS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
