"""Run a blocking function in a thread beside the event loop.

Unlike ``asyncio.to_thread``, calls that hang do not exhaust a pool: each keeps its own thread, and the next
call gets another. The threads are daemons, so the interpreter does not wait for them when it exits.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import os
import queue
import threading
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

T = TypeVar("T")

IDLE_SECONDS = 2.0
"""A thread without work ends after this time."""

_idle: list[queue.SimpleQueue[Callable[[], None]]] = []
"""The queues of threads that wait for work; each thread reads one."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # a forked child has none of these threads


async def in_thread(function: Callable[[], T]) -> T:
    """Return or raise the outcome of ``function()``, run in a thread with the caller's context variables.

    If the caller is cancelled, the thread runs on and its outcome is dropped. ``StopIteration``, which a
    future cannot carry, arrives as ``RuntimeError``.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()
    try:
        jobs = _idle.pop()
    except IndexError:
        jobs = _start_thread()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():  # the caller was cancelled
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]  # a T where there is no error
        else:
            future.set_exception(error)

    def job() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = context.run(function)
        except StopIteration as stopped:
            error = RuntimeError(f"StopIteration: {stopped}")
        except BaseException as raised:  # noqa: BLE001 - the caller gets whatever the function raises
            error = raised
        _idle.append(jobs)  # before the report, so that the caller's next call finds this thread idle
        with contextlib.suppress(RuntimeError):  # the loop was closed while the function ran
            loop.call_soon_threadsafe(deliver, result, error)

    jobs.put(job)
    return await future


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run ``work`` on an event loop in a thread of this package and wait for its result."""
    return asyncio.run_coroutine_threadsafe(work, _loop()).result()


@cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="reward-kit-sync").start()
    return loop


def _start_thread() -> queue.SimpleQueue[Callable[[], None]]:
    jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def work() -> None:
        while True:
            try:
                job = jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                try:
                    _idle.remove(jobs)
                except ValueError:
                    continue  # just taken by a caller, whose job is on its way
                return
            job()
            del job  # drop the references to the caller's objects while waiting

    threading.Thread(target=work, daemon=True, name="in_thread").start()
    return jobs
