"""Waiting that always ends: futures by key that share an owner, and work that outlasts a cancellation.

::

    waiters: Waiters[int, str] = Waiters()
    answer = await waiters.wait(7)             # in one task

    with waiters:                              # in the task that owns them
        async for number, text in stream:
            waiters.answer(number, text)
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Hashable
    from types import TracebackType

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
