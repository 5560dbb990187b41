"""The event loop that a command runs an evaluation in."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")


def run_in_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """What ``work`` returns.

    Not ``asyncio.run``: it puts its own hand on Ctrl-C, also while the bundle loads.
    """
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(work)
    finally:
        _end_all_tasks(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _end_all_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left when an agent or tool raised KeyboardInterrupt, which ends the loop midway.

    Each task is cancelled once: the evaluation still writes its results. Those above the one that was
    interrupted pass the KeyboardInterrupt on, and it ends the loop again each time.
    """
    cancelled: set[asyncio.Task[Any]] = set()
    while tasks := asyncio.all_tasks(loop):
        for task in tasks - cancelled:
            task.cancel()
        cancelled |= tasks
        with suppress(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait(tasks))
    for task in cancelled:
        if not task.cancelled():
            task.exception()  # seen: it has been raised already
