"""Ending a run when a person or the system asks for it: once in good order, twice at once."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from reward_kit.agent.bundles.breakage import broken_off
from reward_kit.agent.bundles.ground import INTERRUPTED, end_process
from reward_kit.agent.bundles.loop_guard import GuardedFuture, guarded_task
from reward_kit.agent.bundles.own_signals import signals_handled
from reward_kit.agent.worker_thread import InterruptedInThread
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from reward_kit.agent.bundles.loop_guard import GuardedTask

T = TypeVar("T")

STDERR = 2
SHOW_CURSOR = "\x1b[?25h"
"""The live line hides it."""
_handled: WeakSet[asyncio.Event] = WeakSet()
"""The events of evaluations whose command handles signals."""
_NEVER_SET = asyncio.Event()


def hear_no_ctrl_c() -> None:
    """Another process ends this one: nobody's Ctrl-C comes here."""
    _handled.add(_NEVER_SET)


def is_ctrl_c(error: BaseException) -> bool:
    """Whether this is a person's Ctrl-C, which raises nothing in threads, nor where a command handles it."""
    return (
        isinstance(error, KeyboardInterrupt) and not isinstance(error, InterruptedInThread) and not _handled
    )


async def until_interrupted(work: Coroutine[Any, Any, None], signalled: asyncio.Event) -> bool:
    """Run ``work``; True if ``signalled`` was set meanwhile, which cancels it.

    Raises ``BundleError`` for what ends it that is neither an error of this package nor a person's wish:
    other code has changed what all of the process stand on, or this package is at fault.
    """
    task = guarded_task(work)
    waiting = guarded_task(signalled.wait())
    try:
        await _either(task, waiting, signalled)
    finally:
        waiting.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled():
        if signalled.is_set():
            return True
        raise asyncio.CancelledError if task.is_cancelled else broken_off(None)
    error = task.exception()
    if isinstance(error, Exception | SystemExit) and not isinstance(error, RewardKitError):
        raise broken_off(error) from error
    task.result()
    return False


async def _either(task: GuardedTask[None], waiting: GuardedTask[Any], signalled: asyncio.Event) -> None:
    """Return when ``task`` has ended or ``signalled`` is set."""
    present: Any = asyncio.current_task()
    before = present.cancelling() if hasattr(present, "cancelling") else 0
    while not task.done() and not signalled.is_set():
        ended = GuardedFuture()
        for one in (task, waiting):
            if not one.done():
                one.add_done_callback(ended.end)
        await ended
    while hasattr(present, "cancelling") and present.cancelling() > before:
        present.uncancel()  # somebody's whom the guard refused


@contextmanager
def signals_set(event: asyncio.Event, killed: Callable[[], str]) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets ``event``; the second ends the process with ``killed()`` on stderr.

    Not the loop's own handlers: those run only between two steps of the loop, and an agent that never gives
    up control, or swallows whatever is raised in it, would keep them waiting for ever.
    """
    loop = asyncio.get_running_loop()
    _handled.add(event)
    asked: list[bool] = []

    def handle() -> None:
        if asked:
            _say_at_once(f"Interrupted. {killed()}")
            end_process(INTERRUPTED)
        asked.append(True)
        loop.call_soon_threadsafe(event.set)
        _say_at_once("Interrupted: the rollouts under way are being ended. Once more ends them at once.")

    with signals_handled(handle, signal.SIGINT, signal.SIGTERM):
        yield


def _say_at_once(text: str) -> None:
    """Write to stderr past Python's buffers, which the signal may have come in the middle of."""
    with suppress(OSError):
        if os.isatty(STDERR):
            text = f"{SHOW_CURSOR}\n{text}"
        os.write(STDERR, f"{text}\n".encode(errors="replace"))


async def seen_through(saving: asyncio.Future[T]) -> T:
    """What ``saving`` gives, waited for to the end even if the evaluation is interrupted meanwhile."""
    try:
        return await asyncio.shield(saving)
    except asyncio.CancelledError:
        while not saving.done():
            with suppress(asyncio.CancelledError):  # they come more than once
                await asyncio.wait({saving})
        saving.exception()  # seen: this was cancelled by the same fault, or by a person
        raise
