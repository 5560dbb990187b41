"""The time that a rollout has, which stands still while it is held up by what is not its doing."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_current: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


class Deadline:
    """``seconds`` (None: for ever) from now until ``passed`` is done, which says why the rollout has to end.

    Close it when it no longer matters.
    """

    def __init__(self, seconds: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.passed: asyncio.Future[str] = self._loop.create_future()
        self._seconds = seconds
        self._left = seconds
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None
        self._run()

    def hold(self) -> None:
        """Let the time stand still until ``go_on`` has been called as often as this."""
        self._held += 1
        if self._held == 1 and self._timer is not None:
            self._left = max(0.0, self._timer.when() - self._loop.time())
            self._timer.cancel()
            self._timer = None

    def go_on(self) -> None:
        """Let the time run again."""
        self._held -= 1
        if self._held == 0:
            self._run()

    def end(self, why: str) -> None:
        """Let it pass now."""
        if not self.passed.done():
            self.passed.set_result(why)

    def close(self) -> None:
        """Forget the time."""
        self._left = None
        if self._timer is not None:
            self._timer.cancel()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """What is begun in this block, tasks included, is held up on its account."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def _run(self) -> None:
        if self._left is not None and not self.passed.done():
            self._timer = self._loop.call_later(self._left, self._pass)

    def _pass(self) -> None:
        self._timer = None
        self._left = None
        self.end(f"not over after {self._seconds:g} s")


def end_rollout(why: str) -> None:
    """End the time of the rollout that this runs for, if any."""
    deadline = _current.get()
    if deadline is not None:
        deadline.end(why)


@contextmanager
def held_up() -> Iterator[None]:
    """In this block the time of the rollout that it runs for, if any, stands still."""
    deadline = _current.get()
    if deadline is None:
        yield
        return
    deadline.hold()
    try:
        yield
    finally:
        deadline.go_on()
