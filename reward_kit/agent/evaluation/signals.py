"""The event loop of a run, and the signals that end it: the first in order, the second at once."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.text import tamed
from reward_kit.agent.base.types import RolloutStopped

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

_T = TypeVar("_T")

logger = logging.getLogger(__name__)

INTERRUPTED = 130
"""The exit code of an interrupted run."""
CANCEL_GRACE = 1.0
"""Seconds that tasks and threads of foreign code have to end once the run is over."""
STDERR = 2
SHOW_CURSOR = "\x1b[?25h"
"""Undoes what the live progress line did to the terminal."""

_abandoned: list[asyncio.Task[Any]] = []
"""Tasks that ignored their cancellation, kept: Python resumes their code when it destroys them."""


def run_in_loop(work: Coroutine[Any, Any, _T]) -> _T:
    """Run ``work`` in a new event loop and return its result, in a process that does nothing else.

    Unlike ``asyncio.run`` it does not wait forever for tasks that swallow their cancellation. Garbage is
    collected rarely meanwhile.
    """
    loop = asyncio.new_event_loop()
    with rare_collections():
        return _run(loop, loop.run_until_complete, work)


def run_from_code(work: Coroutine[Any, Any, _T]) -> _T:
    """Run ``work`` from plain code; if a loop runs already, as in a notebook, in a thread.

    So it does in an ``except`` block: its exception would take the place of causes in ``work``. The first
    Ctrl-C cancels ``work`` and raises ``KeyboardInterrupt`` once it has ended.
    """
    beside = sys.exc_info()[0] is not None
    with suppress(RuntimeError):
        beside = asyncio.get_running_loop() is not None
    if not beside:
        runner = asyncio.Runner()
        return _run(runner.get_loop(), runner.run, work)
    loop = asyncio.new_event_loop()
    main = loop.create_task(work)
    with ThreadPoolExecutor(1, thread_name_prefix="reward-kit") as thread:
        running: Future[_T] = thread.submit(_run, loop, loop.run_until_complete, main)
        try:
            return running.result()
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(main.cancel)
            raise


def is_held_up() -> bool:
    """True if foreign code would keep Python from ending: a task that swallows everything, or a thread."""
    end = time.monotonic() + CANCEL_GRACE
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                return True
    return any(not task.done() for task in _abandoned)


def _run(
    loop: asyncio.AbstractEventLoop, run: Callable[..., _T], work: Coroutine[Any, Any, _T] | asyncio.Task[_T]
) -> _T:
    """Let ``run`` run ``work`` to its end, and end what other code has left behind in the loop."""
    main = asyncio.ensure_future(work, loop=loop)

    async def awaited() -> _T:
        return await main

    loop.set_exception_handler(log_background_error)
    try:
        return run(awaited())
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        if not main.done():  # a task that called sys.exit() has stopped the loop; this one writes its results
            with suppress(asyncio.CancelledError):
                loop.run_until_complete(main)
        if left := asyncio.all_tasks(loop):
            _, pending = loop.run_until_complete(asyncio.wait(left, timeout=CANCEL_GRACE))
            _abandoned.extend(pending)
        loop.set_exception_handler(lambda *_: None)  # abandoned tasks are no news
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


@contextmanager
def signals_handled(stop: asyncio.Event, last_words: Callable[[], str]) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM set ``stop``, and the second end the process.

    The second prints ``last_words()`` on stderr and exits with 130. These are not the loop's own handlers,
    which run between two steps of the loop: an agent that blocks the loop would delay them forever.
    """
    loop = asyncio.get_running_loop()
    asked = False

    def handle(*_: object) -> None:
        nonlocal asked
        if asked:
            _print_now(f"Interrupted. {last_words()}")
            os._exit(INTERRUPTED)
        asked = True
        loop.call_soon_threadsafe(stop.set)
        _print_now("Interrupted. Stopping the running rollouts; press Ctrl-C again to quit immediately.")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def log_background_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Print in one line the exception of a task that nothing awaits (an exception handler of a loop)."""
    error = context.get("exception")
    if isinstance(error, asyncio.CancelledError | RolloutStopped):
        return
    if "future" not in context or error is None:
        loop.default_exception_handler(context)
        return
    logger.debug("background task", exc_info=error)
    line = f"warning: exception in a background task: {fault_line(error)}"
    if sys.stderr is not None:
        sys.stderr.write(f"{tamed(line)}\n")


def _print_now(text: str) -> None:
    """Write to stderr past Python's buffers, in the middle of which the signal may have arrived."""
    with suppress(OSError):
        if os.isatty(STDERR):
            text = f"{SHOW_CURSOR}\n{text}"
        os.write(STDERR, f"{text}\n".encode(errors="replace"))


RARELY = 10_000
"""Objects that are made between two collections of garbage; Python's usual number is 700."""
_freeze_once = cache(gc.freeze)
"""Before the first block only: the garbage of a block is to be collected in the next one."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage in this block only when ``RARELY`` more objects are there.

    Objects that exist before the first such block are never looked at again, nor as Python exits.
    """
    before = gc.get_threshold()
    gc.set_threshold(before[0] and max(before[0], RARELY), *before[1:])  # 0: never
    _freeze_once()
    try:
        yield
    finally:
        gc.set_threshold(*before)
