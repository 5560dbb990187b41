"""Waiting: for a blocking function in a thread beside the event loop, and for answers of others."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import os
import queue
import threading
from collections import deque
from functools import cache, wraps
from inspect import getdoc
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Hashable
    from types import TracebackType

P = ParamSpec("P")
T = TypeVar("T")

IDLE_SECONDS = 2.0
"""A thread without work ends after this time."""
STUCK_SECONDS = 0.01
"""Waiting calls get new threads if no call was taken for this time.

Beside a busy event loop a thread waits 5 ms for its turn, and is not stuck.
"""


class _Job(NamedTuple):
    function: Callable[[], Any]
    context: contextvars.Context
    future: asyncio.Future[Any]
    answers: _Answers


class _Answers:
    """Outcomes on their way to the futures of one event loop, which is woken once for several."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._ready: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_woken = False
        self.is_ringing = False  # it is about to wake a thread for its calls

    def put(self, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._ready.append((future, result, error))
        if not self._is_woken:
            self._is_woken = True
            with contextlib.suppress(RuntimeError):  # the loop was closed while the function ran
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_woken = False  # first: what is put from now on wakes the loop again
        while self._ready:
            future, result, error = self._ready.popleft()
            if future.done():  # the caller was cancelled
                continue
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)


class _Threads:
    """Threads that take calls from one queue.

    A thread continues until the queue is empty; further ones are woken when it is stuck, that is, when it has
    taken no call for ``STUCK_SECONDS``. ``_taking`` are those that are expected to take the next call.
    """

    def __init__(self) -> None:
        self._jobs: deque[_Job] = deque()
        self._put = 0
        self._taking: set[queue.SimpleQueue[None]] = set()
        self._idle: list[queue.SimpleQueue[None]] = []
        self._watched_by: asyncio.AbstractEventLoop | None = None

    def run(self, job: _Job) -> None:
        self._put += 1
        self._jobs.append(job)
        if not job.answers.is_ringing:
            job.answers.is_ringing = True
            job.answers.loop.call_soon(self._ring, job.answers)

    def _ring(self, answers: _Answers) -> None:
        """Wake a thread for what the tasks of an event loop call.

        It waits for them all: a thread beside a busy loop competes for the interpreter's lock with it.
        """
        answers.is_ringing = False
        loop = answers.loop
        if self._watched_by is not loop:  # first: it tries again if no thread can be started now
            self._watched_by = loop
            loop.call_later(STUCK_SECONDS, self._look, loop, self._put - len(self._jobs))
        if self._jobs and not self._taking:
            self._wake()

    def _look(self, loop: asyncio.AbstractEventLoop, taken_before: int) -> None:
        waiting = len(self._jobs)
        taken = self._put - waiting
        self._watched_by = loop if waiting else None
        if waiting:
            loop.call_later(STUCK_SECONDS, self._look, loop, taken)
        if waiting and taken == taken_before:
            self._taking.clear()
            for _ in range(waiting):
                self._wake()

    def _wake(self) -> None:
        if self._idle:
            bell = self._idle.pop()
        else:
            bell = queue.SimpleQueue()
            threading.Thread(target=self._work, args=(bell,), daemon=True, name="in_thread").start()
        self._taking.add(bell)
        bell.put(None)

    def _work(self, bell: queue.SimpleQueue[None]) -> None:
        while True:
            try:
                bell.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                with contextlib.suppress(ValueError):  # just taken by a caller, who is about to ring
                    self._idle.remove(bell)
                    return
                continue
            while True:
                with contextlib.suppress(IndexError):
                    while True:
                        _perform(self._jobs.popleft())
                self._taking.discard(bell)
                if not self._jobs:  # looked at after the line above, so that no call is left waiting
                    break
            self._idle.append(bell)


def _perform(job: _Job) -> None:
    """Run one call, in a separate function, so that a waiting thread refers to no object of the caller."""
    if job.future.cancelled():
        return
    result: Any = None
    error: BaseException | None = None
    try:
        result = job.context.run(job.function)
    except (StopIteration, GeneratorExit, KeyboardInterrupt) as stopped:  # Ctrl-C never arrives in a thread
        error = RuntimeError(f"{type(stopped).__name__}: {stopped}")
    except BaseException as raised:  # noqa: BLE001 - the caller gets whatever the function raises
        error = raised
    job.answers.put(job.future, result, error)


def once(function: Callable[[], T]) -> Callable[[], T]:
    """Run ``function`` in the first call alone; other threads wait for its result.

    Two threads that import one large package can each wait for a module of the other's. Python then gives one
    of them a module that is not complete.
    """
    result, lock = cache(function), threading.RLock()

    @wraps(function)
    def first_result() -> T:
        with lock:
            return result()

    return first_result


class _OfThread(threading.local):
    """The answers for the event loop that runs in each thread."""

    answers: _Answers | None = None


_threads = _Threads()
_of_thread = _OfThread()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: (_threads.__init__(), _loops.clear()))  # type: ignore[misc,func-returns-value]


async def in_thread(function: Callable[[], T]) -> T:
    """Return or raise the outcome of ``function()``, run in a thread with the caller's context variables.

    If the caller is cancelled, the thread runs on and its outcome is dropped. ``StopIteration`` and
    ``GeneratorExit``, which a future cannot carry, arrive as ``RuntimeError``.
    """
    loop = asyncio.get_running_loop()
    answers = _of_thread.answers
    if answers is None or answers.loop is not loop:
        answers = _of_thread.answers = _Answers(loop)
    future: asyncio.Future[T] = loop.create_future()
    _threads.run(_Job(function, contextvars.copy_context(), future, answers))
    return await future


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on an event loop in a thread of this package and wait for its result.

    What ``work`` itself runs so has the same loop, for the sake of open connections, or the next one if it
    holds that up. Ctrl-C cancels ``work``.
    """
    depth = _depth.get()
    with contextlib.suppress(RuntimeError):  # no loop runs in this thread
        depth += asyncio.get_running_loop() is _loops.get(depth)
    before = _depth.set(depth)  # which ``work`` sees, also in its threads
    future = asyncio.run_coroutine_threadsafe(work, _loop(depth))
    _depth.reset(before)
    try:
        return future.result()
    finally:
        future.cancel()


def sync_twin(
    method: Callable[P, Coroutine[Any, Any, T]],
    run: Callable[[Coroutine[Any, Any, T]], T] = run_sync,
) -> Callable[P, T]:
    """The twin of an ``async`` function or method that waits for its result, which ``run`` returns."""

    @wraps(method)
    def twin(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(method(*args, **kwargs))

    twin.__name__ = twin.__qualname__ = method.__name__.removesuffix("_async")
    twin.__doc__ = f"{getdoc(method)}\n\nFor code without an event loop; else take ``{method.__name__}``."
    return twin


_depth: contextvars.ContextVar[int] = contextvars.ContextVar("depth", default=0)


_loops: dict[int, asyncio.AbstractEventLoop] = {}


def _loop(depth: int) -> asyncio.AbstractEventLoop:
    if depth not in _loops:
        made = asyncio.new_event_loop()

        def run() -> None:
            while True:  # a task's sys.exit(), which who waits for the task gets as well, does not end it
                with contextlib.suppress(SystemExit, KeyboardInterrupt):
                    made.run_forever()

        if _loops.setdefault(depth, made) is made:  # else another thread was first
            threading.Thread(target=run, daemon=True, name="reward-kit-sync").start()
        else:
            made.close()
    return _loops[depth]


# -- waiting for answers

K = TypeVar("K", bound="Hashable")
V = TypeVar("V")

logger = logging.getLogger(__name__)

COMPLETION_GRACE = 30.0
"""Seconds that work has to end once the task that waits for it is cancelled."""


class Waiters(Generic[K, V]):
    """Futures by key. ``answer`` and ``fail`` ignore keys that nothing waits for.

    An exception that leaves a ``with`` block goes to all futures, also to those that are made later, and no
    further; one that ends more than its waiters (``KeyboardInterrupt``) goes on, and they get a
    ``RuntimeError``. ``fail_all`` does the same.
    """

    def __init__(self) -> None:
        self._futures: dict[K, asyncio.Future[V]] = {}
        self._fault: BaseException | None = None

    def wait(self, key: K) -> asyncio.Future[V]:
        """Make the future of ``key``."""
        future: asyncio.Future[V] = asyncio.get_running_loop().create_future()
        self._futures[key] = future
        if self._fault is not None:
            self.fail(key, self._fault)
        return future

    def answer(self, key: K, value: V) -> None:
        """Give ``key`` its result."""
        future = self._futures.pop(key, None)
        if future is not None and not future.done():
            future.set_result(value)

    def fail(self, key: K, error: BaseException) -> None:
        """Give ``key`` an exception in place of a result."""
        future = self._futures.pop(key, None)
        if future is not None and not future.done():
            is_usual = isinstance(error, Exception) and not isinstance(error, StopIteration)
            if not is_usual and not isinstance(error, asyncio.CancelledError):
                error = RuntimeError(f"{type(error).__name__}: {error}")
            future.set_exception(error)
            future.exception()  # retrieved, also if the waiter is gone

    def fail_all(self, error: BaseException) -> None:
        """Give all futures ``error``, also later ones; the first error stays."""
        self._fault = self._fault or error
        for key in list(self._futures):
            self.fail(key, self._fault)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self.fail_all(error)
        return isinstance(error, Exception)


async def completed(work: Awaitable[V], what: str) -> V:
    """The result of ``work``, which is not cancelled with this; ``deadline.is_cancelled`` tells then.

    Work that has not ended ``COMPLETION_GRACE`` seconds after a cancellation is abandoned, with a warning
    that names it: ``what``.
    """
    task = asyncio.ensure_future(work)
    loop = asyncio.get_running_loop()
    end: float | None = None
    while not task.done():
        try:
            await asyncio.wait({task}, timeout=None if end is None else max(0.0, end - loop.time()))
        except asyncio.CancelledError:  # there may be several
            end = loop.time() + COMPLETION_GRACE if end is None else end
        if end is not None and end <= loop.time() and not task.done():
            logger.warning("warning: %s did not end within %g s and is abandoned", what, COMPLETION_GRACE)
            raise asyncio.CancelledError
    return task.result()
