"""Ending a run when a person or the system asks for it: once in good order, twice at once."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from types import FrameType

INTERRUPTED = 130
"""The exit code of a process that a second signal ends."""
STDERR = 2
SHOW_CURSOR = "\x1b[?25h"
"""The live line hides it."""


async def until_interrupted(work: Coroutine[Any, Any, None], signalled: asyncio.Event) -> bool:
    """Run ``work``; True if ``signalled`` was set meanwhile, which cancels it."""
    task = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(signalled.wait())
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if signalled.is_set() and task.cancelled():
        return True
    await task
    return False


@contextmanager
def signals_set(event: asyncio.Event, killed: Callable[[], str]) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets ``event``; the second ends the process with ``killed()`` on stderr.

    Not the loop's own handlers: those run only between two steps of the loop, and an agent that never gives
    up control, or swallows whatever is raised in it, would keep them waiting for ever.
    """
    loop = asyncio.get_running_loop()
    asked: list[bool] = []

    def handle(_number: int, _frame: FrameType | None) -> None:
        if asked:
            _say_at_once(f"Interrupted. {killed()}")
            os._exit(INTERRUPTED)
        asked.append(True)
        loop.call_soon_threadsafe(event.set)
        _say_at_once("Interrupted: the rollouts under way are being ended. Once more ends them at once.")

    before: dict[signal.Signals, Any] = {}
    with suppress(ValueError):  # only the main thread can handle signals
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _say_at_once(text: str) -> None:
    """Write to stderr past Python's buffers, which the signal may have come in the middle of."""
    with suppress(OSError):
        if os.isatty(STDERR):
            text = f"{SHOW_CURSOR}\n{text}"
        os.write(STDERR, f"{text}\n".encode(errors="replace"))
