"""Time limits of foreign code, and a rollout's clock.

They stop while other code blocks the event loop, the clock also while rate limits hold its calls back.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterator
    from types import TracebackType

T = TypeVar("T")

CANCELLATION_GRACE = 5.0
"""Seconds that cancelled code has to clean up; after that it is abandoned."""
TICK = 0.25
"""Seconds between two looks at the time limits of an event loop."""
LATE = 0.1
"""Seconds that a look is late if code has blocked the event loop."""
NOTABLE = 1.0
"""Seconds of blocking that are always reported; less if they are past a time limit."""
MOST_MOVED = 10
"""Limit of the time by which a time limit is moved, as a multiple of it."""


def is_cancelled() -> bool:
    """True if this task is being cancelled; its own code may raise ``CancelledError`` as well."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def bounded(
    work: Coroutine[Any, Any, T], timeout: float | None, *, grace: float | None = None
) -> tuple[asyncio.Task[T], bool]:
    """Run ``work`` in a new task; returns the task, and True if it ended within ``timeout`` seconds.

    After that time, or when this is cancelled, the task is cancelled and has ``grace`` seconds
    (``CANCELLATION_GRACE`` by default) to end. One that is still not done then is abandoned.
    """
    task = asyncio.ensure_future(work)
    # asyncio reports no error of an abandoned task that was asked for
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    limit = Deadline(timeout, task)
    either: set[asyncio.Future[Any]] = {task, limit.passed}
    in_time = False
    try:
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        in_time = not limit.check()
    finally:
        limit.close()
        if not task.done():
            await end_tasks({task}, grace=grace)
    return task, in_time


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


class OutOfTimeError(Exception):
    """A ``TimeLimit`` has passed; distinct from a ``TimeoutError`` that the code inside raises itself."""


class _Limit:
    """A time limit of ``task``, which the ticker of its loop looks at.

    ``late`` are the seconds for which the task has blocked the event loop while no limit inside this one was
    open. While ``blocker``, another task, blocks it, its end moves on: by ``MOST_MOVED`` limits, if need be.
    """

    seconds: float | None
    task: asyncio.Task[Any] | None = None
    begun: float
    until: float
    late = moved = 0.0
    blocker: str | None = None

    @property
    def is_moved_off(self) -> bool:
        """True if the end was moved as far as possible: code of others may be why it comes."""
        return self.seconds is not None and self.moved > MOST_MOVED * self.seconds

    def move(self, seconds: float, blocker: str | None) -> None:
        """Move the end on by the time for which the loop stood still."""
        if not self.is_moved_off:
            self.moved += seconds
            self.until += seconds
            self.blocker = blocker

    def expire(self) -> None:
        """Act on the end, which has come."""
        raise NotImplementedError


class TimeLimit(_Limit):
    """``with`` block that cancels the current task after ``seconds`` and raises ``OutOfTimeError``.

    ``on_overrun`` is called, with a sentence on the tool ``name``, if the block still runs
    ``CANCELLATION_GRACE`` seconds later. After the block ``took`` is its duration. None sets no limit, and
    measures nothing; ``math.inf`` measures only. Unlike ``asyncio.timeout`` it starts no timer.
    """

    task: asyncio.Task[Any]
    took = 0.0
    is_over = False

    def __init__(
        self, seconds: float | None, on_overrun: Callable[[str], None] | None = None, name: str = ""
    ) -> None:
        self.seconds = seconds
        self.on_overrun = on_overrun
        self.name = name

    def __enter__(self) -> None:
        if self.seconds is None:
            return
        ticker = _of_thread.ticker
        if ticker is None or ticker.loop is not asyncio.get_running_loop():
            ticker = _ticker()
        self._ticker = ticker
        task = asyncio.current_task(ticker.loop)
        assert task is not None
        self.task = task
        self._cancelling = task.cancelling()
        self.begun = begun = ticker.time()
        self.until = until = begun + self.seconds
        if until < ticker.due or not ticker.limits or not ticker.is_watched:
            ticker.add(self)
        else:
            ticker.limits[self] = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.seconds is None:
            return
        ticker = self._ticker
        now = ticker.time()
        if now > ticker.due + LATE:
            now = ticker.now(self)
        self.took = now - self.begun
        ticker.limits.pop(self, None)
        if self.is_over and self.task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise OutOfTimeError from error

    def expire(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.until += CANCELLATION_GRACE
            self.task.cancel()
        else:
            del self._ticker.limits[self]
            if self.on_overrun is not None:
                limit = f"{self.seconds:g} s, nor when it was cancelled"
                self.on_overrun(f"tool {self.name!r} did not finish within {limit}")

    def blocked(self, remedy: str) -> str | None:
        """The warning for code that has blocked the event loop; None if it did not for long."""
        if self.seconds is None or self.late <= LATE:
            return None
        is_past = self.took > self.seconds
        if not is_past and self.late <= NOTABLE:
            return None
        past = f", past its limit of {self.seconds:g} s," if is_past else ""
        return (
            f"took {self.took:.1f} s{past} and blocked the event loop, which all rollouts share, for "
            f"{self.late:.1f} s or more: {remedy}"
        )


class _Ticker:
    """One timer for all time limits of an event loop: a timer per tool call would cost more than the call.

    ``due`` is the time of its next look, ``TICK`` ahead at most. If that is late, code has blocked the loop
    since. A thread looks meanwhile which task it is.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        own_clock = type(loop).time is not asyncio.BaseEventLoop.time
        self.time = loop.time if own_clock else time.monotonic
        self.limits: dict[_Limit, None] = {}
        self._name: str | None = None
        self.due = self._looked = 0.0
        self._still_since: float | None = None
        """From here to ``_looked`` the loop stood still, which the limits have not been moved by yet."""
        self._blocked: dict[asyncio.Task[Any] | None, list[tuple[float, float]]] = {}
        """The times in which a task blocked it: its own limits are not moved."""
        self.is_watched = False
        self._timer: asyncio.TimerHandle | None = None
        self._blocker: asyncio.Task[Any] | None = None

    def add(self, limit: _Limit) -> None:
        self.limits[limit] = None
        if self._timer is None:
            self._looked = limit.begun
        if self._timer is None or limit.until < self.due:
            self._arm(min(limit.until, limit.begun + TICK))
        if not self.is_watched:
            self.is_watched = True
            threading.Thread(target=self._watch, daemon=True, name="event-loop-watch").start()

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.due = due
        self._timer = self.loop.call_at(due, self._look)

    def _look(self) -> None:
        self._timer = None
        now = max(self.due, self.now())
        self.settle()
        self._looked = now
        for limit in [limit for limit in self.limits if limit.until <= now]:
            limit.expire()
        if self.limits:
            self._arm(min(now + TICK, min(limit.until for limit in self.limits)))

    def now(self, limit: _Limit | None = None) -> float:
        """The time; if the next look is late, the loop stood still for all but the task that blocked it.

        That is the one that the thread has seen, or else the one of ``limit``, its innermost.
        """
        now = self.time()
        if now > self.due + LATE:
            since = self._looked
            if self._still_since is None:
                self._still_since = since
            blocker, self._name = self._blocker, None
            if blocker is None and limit is not None:
                blocker = limit.task
            if blocker is not None:
                self._name = f"{blocker.get_name()} ({getattr(blocker.get_coro(), '__qualname__', '')})"
                self._blocked.setdefault(blocker, []).append((since, now))
                if limit is None or limit.task is not blocker:
                    limit = next((one for one in reversed(self.limits) if one.task is blocker), None)
                if limit is not None:
                    limit.late += now - max(self.due, limit.begun)
            self.due = self._looked = now
        self._blocker = None
        return now

    def settle(self) -> None:
        """Move the limits by the time for which the loop stood still, at once for all of that time."""
        since, self._still_since = self._still_since, None
        if since is None:
            return
        for limit in self.limits:
            stood_still = _after(limit.begun, since, self._looked)
            for begin, end in self._blocked.get(limit.task, ()):
                stood_still -= _after(limit.begun, begin, end)
            if stood_still > 0.0:
                limit.move(stood_still, self._name)
        self._blocked.clear()

    def _watch(self) -> None:
        """Look, in a thread, which task blocks the loop: one that is met there twice in succession."""
        before: asyncio.Task[Any] | None = None
        while self.limits and not self.loop.is_closed():
            due = self.due
            is_late = self.time() > due + LATE
            task = asyncio.current_task(self.loop) if is_late else None
            if task is not None and task is before and due == self.due:
                self._blocker = task
            before = task
            time.sleep(LATE)
        self.is_watched = False


def _after(begun: float, since: float, until: float) -> float:
    """Seconds from ``since`` to ``until`` that come after ``begun``."""
    return max(0.0, until - max(since, begun))


class _TickerOfThread(threading.local):
    """The ticker of the event loop that runs in each thread."""

    ticker: _Ticker | None = None


_of_thread = _TickerOfThread()


def _ticker() -> _Ticker:
    """The ticker of the running event loop."""
    loop = asyncio.get_running_loop()
    ticker = _of_thread.ticker
    if ticker is None or ticker.loop is not loop:
        ticker = _of_thread.ticker = _Ticker(loop)
    return ticker


class Deadline(_Limit):
    """A limit of ``seconds`` for ``task`` from now on (None: no limit).

    The future ``passed`` is done when the time is over; its result says why. Close the deadline when it no
    longer matters.
    """

    def __init__(self, seconds: float | None, task: asyncio.Task[Any] | None = None) -> None:
        self.seconds = seconds
        self.task = task
        self._ticker = _ticker()
        self.passed: asyncio.Future[str] = self._ticker.loop.create_future()
        self._left = seconds
        self._pauses = 0
        self._run()

    def check(self) -> bool:
        """True if the time is over; also if the loop has not yet come to that."""
        ticker = self._ticker
        if self in ticker.limits:
            if self.until <= ticker.time():
                ticker.settle()
            if self.until <= ticker.now():
                self.expire()
        return self.passed.done()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stop the clock in this block; several may overlap."""
        self._pauses += 1
        if self._pauses == 1 and self in self._ticker.limits:
            self._ticker.settle()
            self._left = max(0.0, self.until - self._ticker.now())
            del self._ticker.limits[self]
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
        """Stop the clock; it cannot be started again."""
        self._left = None
        self._ticker.limits.pop(self, None)

    def expire(self) -> None:
        self.close()
        why = f"not over after {self.seconds:g} s"
        if self.is_moved_off:
            why += f", for {self.moved:.0f} s more of which other code blocked the event loop: {self.blocker}"
        self.end(why)

    def _run(self) -> None:
        if self._left is not None and not self.passed.done():
            self.begun = self._ticker.time()
            self.until = self.begun + self._left
            self._ticker.add(self)
