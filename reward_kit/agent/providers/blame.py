"""Whose fault it is that calls fail: the provider's, or that of one conversation which it never takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reward_kit.agent.providers.pauses import jitter, short_wait

if TYPE_CHECKING:
    from collections.abc import Hashable

    from reward_kit.agent.providers.visit import Visit
    from reward_kit.errors import ModelError

REFUSED = frozenset({429, 529})
"""Statuses that say: too many."""

LEAST = 2
"""Failures in a row before a conversation is suspected,"""
UNLIKELY = 1 / 64
"""and how likely it may be at most that it fails so often in a row if it fares as the others do: two failures
while seven others were answered, for example."""
LATELY = 10.0
"""Seconds since the last good answer to anybody for which a suspect may wait for better times."""
LONGEST_PUT_OFF = 60.0
"""Seconds; where the provider asks a suspect to wait longer, its next try comes after this."""


@dataclass(slots=True)
class _Streak:
    """Failures of one conversation in a row: since when, and what others had met by then."""

    began: float
    answers: int
    faults: int
    failures: int = 0


class Blame:
    """Compares how each conversation fares with how the others do; all times are seconds of one clock.

    A limit and a bad day meet all alike. A conversation that alone has more tokens than a limit, or that
    breaks the server, fails each time while the others are answered.
    """

    __slots__ = ("_answers", "_faults", "_last_answer", "_streaks")

    def __init__(self) -> None:
        self._answers = 0
        self._faults = 0
        self._last_answer = float("-inf")
        self._streaks: dict[Hashable, _Streak] = {}

    def sent(self, visit: Visit) -> None:
        """A call is sent; the answers to those under way tell nothing of it, since they were sent before."""
        visit.answers = self._answers + visit.among - 1

    def answered(self, visit: Visit, now: float) -> None:
        """A call has its answer."""
        self._answers += 1
        self._last_answer = now
        self._streaks.pop(visit.caller.conversation, None)

    def failed(self, visit: Visit, now: float, *, least: int = LEAST) -> bool:
        """A call was refused or failed; True if that is its own fault, as far as can be told.

        That takes ``least`` failures in a row.
        """
        conversation = visit.caller.conversation
        streak = self._streaks.get(conversation)
        if streak is None:
            streak = self._streaks[conversation] = _Streak(now, visit.answers, self._faults)
        streak.failures += 1
        answered = max(0, self._answers - streak.answers)
        failed = self._faults - streak.faults
        share = (failed + 1) / (failed + answered + 1)  # nothing is known where no other was answered
        if streak.failures >= least and share**streak.failures <= UNLIKELY:
            return True
        self._faults += 1
        streak.faults += 1  # its own
        return False

    def failures(self, visit: Visit) -> int:
        """How often its conversation has failed in a row."""
        streak = self._streaks.get(visit.caller.conversation)
        return streak.failures if streak else 0

    def seconds(self, visit: Visit, now: float) -> float:
        """For how long its conversation has failed."""
        streak = self._streaks.get(visit.caller.conversation)
        return now - streak.began if streak else 0.0

    def puts_off(self, visit: Visit, fault: ModelError, now: float, *, others: bool) -> bool:
        """Say when a call that is at fault itself may come back; whether that is no retry.

        It is none as long as there are ``others`` or were lately: they may be what uses up a limit.
        """
        asked = min(LONGEST_PUT_OFF, fault.retry_after or 0.0)
        others = others or now - self._last_answer < LATELY
        if asked:
            visit.not_before = now + asked + jitter(asked)
        elif others and is_refusal(fault):
            visit.not_before = now + short_wait(self.failures(visit), 0)
        return others and (asked > 0 or is_refusal(fault))


def is_refusal(fault: ModelError) -> bool:
    """Whether the provider says: too many. The call is asked again when there is room."""
    return fault.retryable and fault.status in REFUSED
