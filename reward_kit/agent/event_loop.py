"""The event loop that an evaluation runs in, for commands and for plain code."""

from __future__ import annotations

import asyncio
import signal
import threading
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.bundles.loose_ends import tell, tell_of_task
from reward_kit.agent.bundles.own_signals import signals_handled
from reward_kit.agent.interruption import is_ctrl_c

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
_T = TypeVar("_T")

LEFT_BEHIND_AFTER = 1.0
"""Seconds that tasks have to end once the work is done; a tool may not heed its cancellation."""


def run_in_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """What ``work`` returns. Ctrl-C is left to whoever handles it.

    Unlike ``asyncio.run`` it does not wait for ever for tasks of others that swallow their cancellation.
    """
    loop = asyncio.new_event_loop()
    return _run(loop, loop.create_task(work))


def run_from_code(work: Coroutine[Any, Any, _T]) -> _T:
    """What ``work`` returns, also where a loop runs already, as in a notebook: then in a thread.

    The first Ctrl-C cancels ``work`` and is raised when that has ended.
    """
    loop = asyncio.new_event_loop()
    main = loop.create_task(work)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with _ctrl_c_cancels(loop, main):
            return _run(loop, main)
    return _run_in_thread(loop, main)


def _run(loop: asyncio.AbstractEventLoop, main: asyncio.Task[_T]) -> _T:
    loop.set_exception_handler(tell_of_task)
    try:
        return _to_its_end(loop, main)
    finally:
        _end_all_tasks(loop, main)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _run_in_thread(loop: asyncio.AbstractEventLoop, main: asyncio.Task[_T]) -> _T:
    ended = threading.Event()

    def run() -> None:
        asyncio.set_event_loop(loop)
        with suppress(BaseException):  # raised below, in the thread that waits
            _run(loop, main)
        ended.set()

    threading.Thread(target=run, name="reward-kit", daemon=True).start()
    try:
        ended.wait()
    except KeyboardInterrupt:
        loop.call_soon_threadsafe(main.cancel)
        ended.wait()
        raise
    return main.result()


@contextmanager
def _ctrl_c_cancels(loop: asyncio.AbstractEventLoop, main: asyncio.Task[Any]) -> Iterator[None]:
    """Have Ctrl-C cancel ``main`` instead of ending what runs at that moment; the second one does that."""
    asked: list[bool] = []

    def handle() -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(True)
        loop.call_soon_threadsafe(main.cancel)

    handles = (
        threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
    try:
        with signals_handled(handle, signal.SIGINT) if handles else nullcontext():
            yield
    except asyncio.CancelledError:
        if asked:
            raise KeyboardInterrupt from None
        raise


def _to_its_end(loop: asyncio.AbstractEventLoop, main: asyncio.Task[_T]) -> _T:
    """What ``main`` returns.

    ``SystemExit`` and ``KeyboardInterrupt`` of any task or callback leave the loop, in the midst of all
    others. Where it was not ``main`` that raised them, nor a person, it goes on: whoever waits for that task
    hears of it.
    """
    while True:
        try:
            return loop.run_until_complete(main)
        except (SystemExit, KeyboardInterrupt) as error:  # noqa: PERF203 - it is entered once, nearly always
            if main.done() or is_ctrl_c(error):
                raise
            tell("a task", error)


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
        with suppress(KeyboardInterrupt, SystemExit):
            left = None if end is None else end - loop.time()
            loop.run_until_complete(asyncio.wait(tasks, timeout=left))
    for task in cancelled:
        if not task.done():
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001 - it is known
        elif not task.cancelled():
            task.exception()  # seen: it has been raised already
