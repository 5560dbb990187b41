"""A blocking function run beside the event loop, in a thread of its own.

Not ``asyncio.to_thread``: in its pool a few calls that hang starve all others, and the interpreter waits for
them when it exits. A daemon thread costs about the same and keeps nobody waiting.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


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

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = context.run(function)
        except StopIteration as stopped:
            error = RuntimeError(f"StopIteration: {stopped}")  # a future cannot carry StopIteration
        except BaseException as raised:  # noqa: BLE001 - the caller waits for it in another thread
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed while the function ran
            loop.call_soon_threadsafe(deliver, result, error)

    threading.Thread(target=run, daemon=True, name=f"in_thread {getattr(function, '__name__', '')}").start()
    return await future
