"""Time limits of foreign code, and a rollout's clock, which stops while rate limits hold its calls back."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator
    from types import TracebackType

T = TypeVar("T")

CANCELLATION_GRACE = 5.0
"""Seconds that cancelled code has to clean up; after that it is abandoned."""
TICK = 1.0
"""Seconds between two looks at the time limits of an event loop."""


def is_cancelled() -> bool:
    """True if this task is being cancelled; its own code may raise ``CancelledError`` as well."""
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


class OutOfTimeError(Exception):
    """A ``TimeLimit`` has passed; distinct from a ``TimeoutError`` that the code inside raises itself."""


class TimeLimit:
    """``with`` block that cancels the current task after ``seconds`` and raises ``OutOfTimeError``.

    ``on_overrun`` is called if the block still runs ``CANCELLATION_GRACE`` seconds later. After the block
    ``took`` is its duration, ``late`` the seconds for which the event loop was certainly blocked at its end.
    None sets no limit, and measures nothing. Unlike ``asyncio.timeout`` it makes no timer of its own.
    """

    __slots__ = (
        *("_cancelling", "_ticker", "begun", "end", "is_over", "late", "on_overrun", "seconds"),
        *("task", "took"),
    )

    def __init__(self, seconds: float | None, on_overrun: Callable[[], None] | None = None) -> None:
        self.seconds = seconds
        self.on_overrun = on_overrun
        self.is_over = False
        self.late = self.took = 0.0

    def __enter__(self) -> None:
        if self.seconds is None:
            return
        self._ticker = ticker = _ticker()
        task = asyncio.current_task(ticker.loop)
        assert task is not None
        self.task = task
        self._cancelling = task.cancelling()
        self.begun = ticker.loop.time()
        self.end = self.begun + self.seconds
        ticker.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.seconds is None:
            return
        ticker = self._ticker
        ticker.limits.pop(self, None)
        now = ticker.loop.time()
        self.took = now - self.begun
        self.late = now - max(self.begun, ticker.due)
        if self.is_over and self.task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise OutOfTimeError from error


class _Ticker:
    """One timer for all time limits of an event loop: a timer per tool call would cost more than the call.

    ``due`` is the time of its next look, a second ahead at most.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.limits: dict[TimeLimit, None] = {}
        self.due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, limit: TimeLimit) -> None:
        self.limits[limit] = None
        if self._timer is None or limit.end < self.due:
            self._arm(min(limit.end, limit.begun + TICK))

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.due = due
        self._timer = self.loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        now = max(self.due, self.loop.time())
        for limit in [limit for limit in self.limits if limit.end <= now]:
            if not limit.is_over:
                limit.is_over = True
                limit.end += CANCELLATION_GRACE
                limit.task.cancel()
            else:
                del self.limits[limit]
                if limit.on_overrun is not None:
                    limit.on_overrun()
        if self.limits:
            self._arm(min(now + TICK, min(limit.end for limit in self.limits)))


class _OfThread(threading.local):
    """The ticker of the event loop that runs in each thread."""

    ticker: _Ticker | None = None


_of_thread = _OfThread()


def _ticker() -> _Ticker:
    loop = asyncio.get_running_loop()
    ticker = _of_thread.ticker
    if ticker is None or ticker.loop is not loop:
        ticker = _of_thread.ticker = _Ticker(loop)
    return ticker


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

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock in this block; several may overlap."""
        self._pauses += 1
        if self._pauses == 1 and self._timer is not None:
            self._left = max(0.0, self._timer.when() - self._loop.time())
            self._timer.cancel()
            self._timer = None
        try:
            yield
        finally:
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
