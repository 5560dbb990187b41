"""Fewer garbage collections while rollouts run."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ALLOCATIONS = 20_000
"""New objects between two collections; Python's own 700 means many looks at hundreds of live conversations, a
tenth of the time of a run, for next to no garbage.
"""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect more rarely within; what the process has set is put back. One that is off stays off."""
    before = gc.get_threshold()
    if 0 < before[0] < ALLOCATIONS:
        gc.set_threshold(ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
