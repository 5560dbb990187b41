"""The time that a tool call may take, and whether it kept the event loop to itself meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from reward_kit.agent.deadline import end_rollout
from reward_kit.agent.limits import CANCELLATION_GRACE

if TYPE_CHECKING:
    from types import TracebackType

LATE_SECONDS = 0.1
"""What is called so much later than it asked for tells that the event loop stood still."""
NOTABLE_SECONDS = 1.0
"""As late as that is worth a line also within the limit; the loop is asked to call back as often."""


class OutOfTimeError(Exception):
    """The tool ran past its limit; told apart from a ``TimeoutError`` of its own."""


class TimeLimit:
    """``asyncio.timeout`` as Python 3.11 has it, for 3.10 as well.

    A tool that goes on when its time is over ends the rollout. The event loop is asked to call back each
    second: at the end ``late`` are the seconds for which it has not done so, though it was time.
    """

    __slots__ = (
        *("_begun", "_cancelling", "_expired", "_handle", "_loop", "_seconds", "_task", "_tool"),
        "late",
    )

    def __init__(self, seconds: float | None, tool: str) -> None:
        self._seconds = seconds
        self._tool = tool
        self._expired = False
        self._handle: asyncio.TimerHandle | None = None
        self.late = 0.0

    async def __aenter__(self) -> None:
        if self._seconds is None:
            return
        task = asyncio.current_task()
        assert task is not None
        self._task: Any = task
        self._cancelling = task.cancelling() if hasattr(task, "cancelling") else 0
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._handle = self._loop.call_at(self._begun + min(self._seconds, NOTABLE_SECONDS), self._look)

    def _look(self) -> None:
        """The event loop runs: let it call again, until the time is over."""
        assert self._handle is not None
        assert self._seconds is not None
        end = self._begun + self._seconds
        if self._handle.when() >= end:
            self._expire()
        else:
            soon = self._loop.time() + NOTABLE_SECONDS
            self._handle = self._loop.call_at(min(soon, end), self._look)

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()
        self._handle = self._loop.call_later(CANCELLATION_GRACE, self._give_up)

    def _give_up(self) -> None:
        limit = f"within {self._seconds:g} s"
        end_rollout(f"tool {self._tool!r} did not finish {limit}, nor when it was cancelled")

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self.late = self._loop.time() - self._handle.when()
            self._handle.cancel()
        if not self._expired:
            return
        others = self._task.uncancel() > self._cancelling if hasattr(self._task, "uncancel") else False
        if kind is asyncio.CancelledError and not others:
            raise OutOfTimeError from error

    @property
    def held_up(self) -> str | None:
        """What to tell the author of an ``async def`` tool that was ``late``; None if it is not worth it."""
        assert self._handle is not None
        assert self._seconds is not None
        took = self._handle.when() + self.late - self._begun
        past = f", past its limit of {self._seconds:g} s," if took > self._seconds else ""
        if not past and self.late <= NOTABLE_SECONDS:
            return None
        return (
            f"took {took:.1f} s{past} and held up all rollouts, for {self.late:.1f} s of them or more: "
            "write it as def, or await what takes long"
        )
