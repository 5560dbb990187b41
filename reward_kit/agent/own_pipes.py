"""The ends of pipes that no process may hold but this one.

Code of a bundle forks, where nothing else is said also in ``multiprocessing`` and pools of processes. Such a
child has a copy of every descriptor, and whoever waits for the end of a pipe would wait for the child's.
"""

from __future__ import annotations

import os
from contextlib import suppress
from os import O_RDWR, close, devnull, dup2, fstat, open  # noqa: A004 - as they are now: tools may break them

_ends: dict[int, tuple[int, int]] = {}
"""By their numbers, which file it was: other code may close a descriptor, and another gets its number."""


def keep_from_children(descriptor: int) -> None:
    """Have processes that are forked from now on hold nothing in its place."""
    _ends[descriptor] = _identity(descriptor)


def _identity(descriptor: int) -> tuple[int, int]:
    found = fstat(descriptor)
    return found.st_dev, found.st_ino


def _let_go() -> None:
    """In a child: put nothing in their places. The numbers stay taken: objects may close them."""
    if not _ends:
        return
    with suppress(OSError):  # no descriptor is free
        nothing = open(devnull, O_RDWR)
        for descriptor, identity in _ends.items():
            with suppress(OSError):  # it is closed
                if _identity(descriptor) == identity:
                    dup2(nothing, descriptor, inheritable=False)
        close(nothing)
    _ends.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
