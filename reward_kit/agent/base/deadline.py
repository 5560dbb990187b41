"""Time limits of foreign code, and a clock that stands still during waits that are not a rollout's doing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection, Coroutine

T = TypeVar("T")

CANCELLATION_GRACE = 5.0
"""Seconds that cancelled code has to clean up; after that it is abandoned."""


def is_cancelled() -> bool:
    """Tell the cancellation of this task from a ``CancelledError`` that its own code raised."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def bounded(
    work: Coroutine[Any, Any, T], timeout: float | None, *, grace: float | None = None
) -> tuple[asyncio.Task[T], bool]:
    """Run ``work`` in a task of its own; returns it, and True if it ended within ``timeout`` seconds.

    After that time, or when this is cancelled, the task is cancelled and has ``grace`` seconds
    (``CANCELLATION_GRACE`` by default) to end. One that is still not done then is abandoned.
    """
    task = asyncio.ensure_future(work)
    task.add_done_callback(_retrieved)
    in_time: Collection[asyncio.Task[T]] = ()
    try:
        in_time, _ = await asyncio.wait({task}, timeout=timeout)
    finally:
        if not task.done():
            await end_tasks({task}, grace=grace)
    return task, bool(in_time)


async def end_tasks(tasks: Collection[asyncio.Task[Any]], *, grace: float | None = None) -> None:
    """Cancel ``tasks`` and wait for their end, but no longer than ``grace`` seconds.

    Those that were cancelled before have had their time.
    """
    most = CANCELLATION_GRACE if grace is None else grace
    timeout = 0.0 if all(task.cancelling() for task in tasks) else most
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=timeout)


def _retrieved(task: asyncio.Task[Any]) -> None:
    """Keep asyncio from reporting the error of an abandoned task."""
    if not task.cancelled():
        task.exception()


class Deadline:
    """A limit of ``seconds`` from now on (None: no limit).

    The future ``passed`` is done when the time is over; its result says why. Close the deadline when it no
    longer matters.
    """

    def __init__(self, seconds: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.passed: asyncio.Future[str] = self._loop.create_future()
        self._seconds = seconds
        self._left = seconds
        self._pauses = 0
        self._timer: asyncio.TimerHandle | None = None
        self._run()

    def hold(self) -> None:
        """Stop the clock until ``go_on`` has been called as often as this."""
        self._pauses += 1
        if self._pauses == 1 and self._timer is not None:
            self._left = max(0.0, self._timer.when() - self._loop.time())
            self._timer.cancel()
            self._timer = None

    def go_on(self) -> None:
        """Undo one ``hold``."""
        self._pauses -= 1
        if self._pauses == 0:
            self._run()

    def end(self, why: str) -> None:
        """Let the time be over now."""
        if not self.passed.done():
            self.passed.set_result(why)

    def close(self) -> None:
        """Stop the clock for good."""
        self._left = None
        if self._timer is not None:
            self._timer.cancel()

    def _run(self) -> None:
        if self._left is not None and not self.passed.done():
            self._timer = self._loop.call_later(self._left, self._pass)

    def _pass(self) -> None:
        self._timer = None
        self._left = None
        self.end(f"not over after {self._seconds:g} s")
