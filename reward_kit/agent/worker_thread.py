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
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

IDLE_SECONDS = 2.0
"""A thread that had nothing to do for so long ends."""


class InterruptedInThread(KeyboardInterrupt):
    """Raised where code in a thread raised ``KeyboardInterrupt``: nobody pressed Ctrl-C, which only the main
    thread hears of.
    """


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


async def in_thread(function: Callable[[], T]) -> T:
    """What ``function()`` returns or raises; when the caller is cancelled the thread is left to itself."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]  # T where there is no error
        else:
            future.set_exception(error)

    def run() -> Callable[[], None]:
        result: T | None = None
        error: BaseException | None = None
        process = os.getpid()
        try:
            result = context.run(function)
        except KeyboardInterrupt as raised:
            error = InterruptedInThread(*raised.args).with_traceback(raised.__traceback__)
        except StopIteration as stopped:
            error = RuntimeError(f"StopIteration: {stopped}")  # a future cannot carry StopIteration
        except BaseException as raised:  # noqa: BLE001 - the caller waits for it in another thread
            error = raised

        if os.getpid() != process:
            os._exit(0)  # forked by the function: the parent goes on, one of them is enough

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed while the function ran
                loop.call_soon_threadsafe(deliver, result, error)

        return tell

    _worker().give(run)
    return await future
