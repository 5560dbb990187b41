"""The event loop that a command runs an evaluation in."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.bundles.loose_ends import tell_of_task

if TYPE_CHECKING:
    from collections.abc import Coroutine

_T = TypeVar("_T")

LEFT_BEHIND_AFTER = 1.0
"""Seconds that tasks have to end once the work is done; a tool may not heed its cancellation."""


def run_in_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """What ``work`` returns.

    Not ``asyncio.run``: it puts its own hand on Ctrl-C, also while the bundle loads.
    """
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(tell_of_task)
    main = loop.create_task(work)
    try:
        return loop.run_until_complete(main)
    finally:
        _end_all_tasks(loop, main)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _end_all_tasks(loop: asyncio.AbstractEventLoop, main: asyncio.Task[Any]) -> None:
    """Cancel what is left: of tools and agents, and when one raised KeyboardInterrupt, which ends the loop
    midway, all of it.

    Each task is cancelled once: the evaluation still writes its results. Those above the one that was
    interrupted pass the KeyboardInterrupt on, and it ends the loop again each time.
    """
    cancelled: set[asyncio.Task[Any]] = set()
    end = None
    while tasks := asyncio.all_tasks(loop):
        for task in tasks - cancelled:
            task.cancel()
        cancelled |= tasks
        if main.done() and end is None:
            end = loop.time() + LEFT_BEHIND_AFTER
        if end is not None and loop.time() >= end:
            break
        with suppress(KeyboardInterrupt):
            left = None if end is None else end - loop.time()
            loop.run_until_complete(asyncio.wait(tasks, timeout=left))
    for task in cancelled:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it is known
        elif not task.cancelled():
            task.exception()  # seen: it has been raised already
