"""A blocking function run beside the event loop, in a thread that nothing else needs meanwhile.

Not ``asyncio.to_thread``: in its pool a few calls that hang starve all others, and the interpreter waits for
them when it exits. Here a call that hangs keeps its thread, the next call gets another, and all are daemons.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import queue
import sys
import threading
import time
from os import getpid
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

IDLE_SECONDS = 2.0
"""A thread that had nothing to do for so long ends."""

QUICK_SECONDS = 0.0 if sys.platform == "win32" else 0.0005
"""The event loop stands still for functions that take no longer. Most do not (a reward reads a few rows), and
two threads that run Python at once hand its lock to and fro at every statement, which costs them more. On
Windows the shortest wait may take thirty times as long.
"""

PATIENCE = 0.005
"""Seconds that it stands still at most: what is quick may take so long while a third thread has the lock."""


class InterruptedInThread(KeyboardInterrupt):
    """Raised where code in a thread raised ``KeyboardInterrupt``: nobody pressed Ctrl-C, which only the main
    thread hears of.
    """


class Pace:
    """How long functions of one kind, as one tool's, usually take: the shortest time of late.

    Only times that say something count. One that ran beside the loop may have spent them waiting for Python's
    lock, the longer the more of them there are; so now and then, ever more rarely, the loop stands still for
    one of a slow kind, to see whether it is slow by itself.
    """

    __slots__ = ("_beside", "_seconds", "_spacing")

    def __init__(self) -> None:
        self._seconds: float | None = None
        self._beside = 0
        self._spacing = _FIRST_SPACING

    @property
    def is_quick(self) -> bool:
        """Whether the next is worth standing still for; the first of its kind is."""
        return self._seconds is None or self._seconds < QUICK_SECONDS

    def is_tried(self) -> bool:
        """Whether to stand still for the next one: it is of a quick kind, or shall show whether it is."""
        if self.is_quick:
            return True
        self._beside += 1
        if self._beside < self._spacing:
            return False
        self._beside = 0
        self._spacing = min(2 * self._spacing, _WIDEST_SPACING)
        return True

    def note(self, seconds: float, *, beside: bool = False) -> None:
        """One took so long, ``beside`` the loop or while that stood still.

        Quick ones that were kept from Python's lock do not pass for slow at once.
        """
        if beside and seconds >= QUICK_SECONDS:
            return
        usual = seconds if self._seconds is None else max(2 * self._seconds, _SHORTEST)
        self._seconds = min(seconds, usual)
        if self.is_quick:
            self._spacing = _FIRST_SPACING


_SHORTEST = 0.0001
_FIRST_SPACING, _WIDEST_SPACING = 4, 256
"""Functions of a slow kind from one that the loop stands still for to the next."""


class _Worker:
    """A thread that runs one job after the other; a job gives what tells its caller of the outcome."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], Callable[[], None]]] = queue.SimpleQueue()
        threading.Thread(target=self._work, daemon=True, name="in_thread").start()

    def give(self, job: Callable[[], Callable[[], None]]) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                try:
                    _idle.remove(self)
                except ValueError:
                    continue  # it has just been taken: its job is on the way
                return
            tell = job()
            _idle.append(self)  # before the caller hears of it and asks for a thread again
            tell()
            del job, tell  # what they hold must not outlive them


_idle: list[_Worker] = []


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a child process has none of these threads


def _worker() -> _Worker:
    """The thread that became idle last, or a new one."""
    try:
        return _idle.pop()
    except IndexError:
        return _Worker()


class _Call(Generic[T]):
    """A function on its way through a thread, and what comes of it on the way back to the event loop."""

    def __init__(self, function: Callable[[], T], pace: Pace | None) -> None:
        self._function = function
        self._pace = pace
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self._loop.create_future()
        self._result: T | None = None
        self._error: BaseException | None = None
        self._running = threading.Lock()
        self._running.acquire()
        self._expected = False
        self._waited_for = pace is not None and pace.is_tried()

    def run(self) -> Callable[[], None]:
        """Call the function, in the thread; returns what tells the event loop of it."""
        process = getpid()
        begun = time.perf_counter()
        try:
            self._result = self._context.run(self._function)
        except KeyboardInterrupt as raised:
            self._error = InterruptedInThread(*raised.args).with_traceback(raised.__traceback__)
        except StopIteration as stopped:
            self._error = RuntimeError(f"StopIteration: {stopped}")  # a future cannot carry StopIteration
        except GeneratorExit as raised:  # it would close whoever waits
            self._error = RuntimeError("GeneratorExit").with_traceback(raised.__traceback__)
        except BaseException as raised:  # noqa: BLE001 - the caller waits for it in another thread
            self._error = raised

        if getpid() != process:
            os._exit(0)  # forked by the function: the parent goes on, one of them is enough
        if self._pace is not None:
            self._pace.note(time.perf_counter() - begun, beside=not self._waited_for)
        return self._tell

    def is_over_soon(self) -> bool:
        """Whether the function, if its pace is tried, is over within ``PATIENCE``; if not, the future is set
        when it is.
        """
        if self._waited_for:
            assert self._pace is not None
            if self._running.acquire(timeout=PATIENCE):
                return True
            self._waited_for = False
            self._pace.note(PATIENCE)
        self._expected = True
        return self._running.acquire(blocking=False)  # it may have ended since, before it could see that

    def deliver(self) -> None:
        """Set the future, in the event loop; more than once does no harm."""
        if self.future.done():
            return
        if self._error is None:
            self.future.set_result(self._result)  # type: ignore[arg-type]  # T where there is no error
        else:
            self.future.set_exception(self._error)

    def _tell(self) -> None:
        self._running.release()
        if self._expected:
            with contextlib.suppress(RuntimeError):  # the loop was closed while the function ran
                self._loop.call_soon_threadsafe(self.deliver)


async def in_thread(function: Callable[[], T], *, pace: Pace | None = None, in_turn: bool = True) -> T:
    """What ``function()`` returns or raises; when the caller is cancelled the thread is left to itself.

    With the ``pace`` of its kind, the event loop waits for it if that is quick; not for functions that need
    the loop to come to an end. Where it was waited for, others get their turn before the caller goes on, and
    a cancellation is heard; a caller that asks once does without: not ``in_turn``.
    """
    call = _Call(function, pace)
    _worker().give(call.run)
    if call.is_over_soon():
        if in_turn:
            asyncio.get_running_loop().call_soon(call.deliver)
        else:
            call.deliver()
    return await call.future
