"""Time limits of rollouts, with a clock that stands still during waits that are not the rollout's doing."""

from __future__ import annotations

import asyncio

CANCELLATION_GRACE = 5.0
"""Seconds that cancelled code has to clean up; after that nobody waits for it."""


class Deadline:
    """A limit of ``seconds`` from now on (None: no limit).

    The future ``passed`` is done when the time is over; its result says why. Close the deadline when it no
    longer matters.
    """

    def __init__(self, seconds: float | None) -> None:
        self._loop = asyncio.get_running_loop()
        self.passed: asyncio.Future[str] = self._loop.create_future()
        self._seconds = seconds
        self._left = seconds
        self._pauses = 0
        self._timer: asyncio.TimerHandle | None = None
        self._run()

    def hold(self) -> None:
        """Stop the clock until ``go_on`` has been called as often as this."""
        self._pauses += 1
        if self._pauses == 1 and self._timer is not None:
            self._left = max(0.0, self._timer.when() - self._loop.time())
            self._timer.cancel()
            self._timer = None

    def go_on(self) -> None:
        """Undo one ``hold``."""
        self._pauses -= 1
        if self._pauses == 0:
            self._run()

    def end(self, why: str) -> None:
        """Let the time be over now."""
        if not self.passed.done():
            self.passed.set_result(why)

    def close(self) -> None:
        """Stop the clock for good."""
        self._left = None
        if self._timer is not None:
            self._timer.cancel()

    def _run(self) -> None:
        if self._left is not None and not self.passed.done():
            self._timer = self._loop.call_later(self._left, self._pass)

    def _pass(self) -> None:
        self._timer = None
        self._left = None
        self.end(f"not over after {self._seconds:g} s")


def is_cancelled() -> bool:
    """Tell the cancellation of this task from a ``CancelledError`` that its own code raised."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
