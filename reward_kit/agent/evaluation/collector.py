"""Garbage collection in a process that runs an evaluation and nothing else.

Rollouts leave few cycles behind, and a collection looks at every object of thousands of open rollouts::

    with rare_collections():
        await evaluate_async("my_task", agent="gold")
"""

from __future__ import annotations

import asyncio
import gc
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LOOK_EVERY = 1.0
"""Seconds between two looks at the memory."""
GROWTH, LEAST = 1.25, 64 << 20
"""Collect once the memory is this many times, and at least this many bytes, above that of last time."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage in this block only when the memory of the process has grown notably.

    Objects that exist before are never looked at. Needs a running event loop; changes nothing on a system
    that does not tell the memory of a process (``/proc``).
    """
    before = memory_of(os.getpid())
    if not before or not gc.isenabled():
        yield
        return
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle

    def look(collected_at: int) -> None:
        nonlocal timer
        if memory_of(os.getpid()) > max(collected_at * GROWTH, collected_at + LEAST):
            gc.collect()
            collected_at = memory_of(os.getpid())
        timer = loop.call_later(LOOK_EVERY, look, collected_at)

    timer = loop.call_later(LOOK_EVERY, look, before)
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        timer.cancel()
        gc.unfreeze()
        gc.enable()


def memory_of(pid: int) -> int:
    """Resident bytes of a process; 0 if it has ended, or if the system does not tell."""
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0
