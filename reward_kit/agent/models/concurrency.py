"""The number of calls that a provider takes at once, learned from its answers and refusals.

Additive increase, multiplicative decrease, as TCP does it, in units of calls in flight. The number may fall
below one: calls are then spaced further apart than an answer takes, so that a provider that takes one call a
second is followed as well as one that takes fifty at once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from reward_kit.agent.base.network import backoff

if TYPE_CHECKING:
    from reward_kit.agent.models.calls import Call

START = 16.0
"""Calls at once before anything is known; doubled in the time of an answer until the first refusal."""
RESTART = 2.0
"""Calls at once after an outage."""
DECREASE = 0.75
"""Factor by which the number shrinks."""
INCREASE, SLOWER_BELOW = 0.1, 8.0
"""Share by which it grows in the time of an answer; half of that at the second number, less below it."""
TOLERATED, MOST_TOLERATED = 0.15, 0.8
"""Share of refused calls without a named time that is taken for chance: no fewer calls are made for it."""
DOUBT = 3.0
"""Factor of that share for failures that may have other reasons than too many calls."""
PRIOR, MEMORY = 8, 64
"""Good answers that are assumed before the first one, and calls after which the counts are halved."""
LONGEST_SPACING = 10.0
"""Seconds; fewer calls than one in this time are left to the pauses that refusals bring."""
SPREAD = 0.95
"""Share of an answer's time over which the calls at once are spread once one has been refused."""
SILENCE = 2.0
"""Without a good answer for this multiple of its time, the calls of a second or minute are used up."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds of the first pause in such a silence, doubled with each further one."""
FELL, PROPORTIONAL, ENOUGH = 0.6, 1.25, 5
"""A fall to the share ``FELL`` is judged after ``ENOUGH`` answers; see ``_undo``."""


class Concurrency:
    """A number of calls at once, at most ``ceiling``. All times are seconds of one clock.

    A call notes the ``generation`` when it is sent: refusals of calls that were sent before the number last
    shrank say nothing about the new number.
    """

    def __init__(self, ceiling: int) -> None:
        self.ceiling = float(ceiling)
        self.limit = min(START, self.ceiling)
        self.generation = 0
        self._latency = 0.0
        self._last_answer = -math.inf
        self._was_refused = self._paced = False
        self._tolerated = TOLERATED
        self._pauses = 0
        self._fall: tuple[float, float] | None = None
        self._begin(0.0)

    @property
    def at_once(self) -> int:
        """Calls that may be in flight together; at least one."""
        return max(1, int(self.limit + 1e-9))

    @property
    def spacing(self) -> float:
        """Seconds between the starts of two calls."""
        return min(LONGEST_SPACING, SPREAD * self._latency / self.limit) if self._paced else 0.0

    def sent(self, call: Call) -> None:
        """Count a call that is sent."""
        call.generation = self.generation
        self._sent += 1
        if self._sent >= MEMORY:
            self._sent /= 2
            self._refused /= 2

    def answered(self, call: Call, now: float, *, full: bool) -> None:
        """Count a good answer; ``full``: there was no room for more calls."""
        self._latency += (now - call.sent - self._latency) / (8 if self._latency else 1)
        self._last_answer = now
        self._answers += 1
        self._pauses = 0
        if full and call.generation == self.generation:
            step = INCREASE * self.limit / (self.limit + SLOWER_BELOW) if self._was_refused else 1.0
            self.limit = min(self.ceiling, self.limit + step)

    def refused(self, call: Call, now: float, *, named: bool, doubtful: bool) -> float:
        """Count a refused call; returns the seconds of a pause for all calls.

        ``named``: the provider says when to come back; such a refusal always counts. ``doubtful``: the
        failure may have another reason than too many calls.
        """
        self._paced = True
        if call.generation != self.generation:
            return 0.0
        self._refused += 1
        if not named:
            share = self._refused / (self._sent + PRIOR)
            seconds = now - self._since
            if share < self._tolerated * (DOUBT if doubtful else 1.0) or seconds < self._latency:
                return 0.0
            if self._latency and now - self._last_answer > SILENCE * max(self._latency, self.spacing):
                self._begin(now)
                self._tolerated, self._fall = TOLERATED, None
                self._pauses += 1
                return min(LONGEST_PAUSE, backoff(self._pauses, first=FIRST_PAUSE))
            if self._answers and self._undo(self._answers / max(1e-3, seconds)):
                self._tolerated = min(MOST_TOLERATED, 2.0 * share)
                self._begin(now)
                return 0.0
        if self._answers or not self._was_refused:  # else the reason of the last decrease still holds
            self._was_refused = True
            self.limit = max(SPREAD * self._latency / LONGEST_SPACING, self.limit * DECREASE)
            self._begin(now)
        return 0.0

    def restart(self, now: float) -> None:
        """Begin with few calls again."""
        self.limit = min(self.limit, RESTART)
        self._begin(now)

    def _undo(self, rate: float) -> bool:
        """Undo a fall that has not helped: with fewer calls, proportionally fewer were answered.

        Below a limit the answers per second, ``rate``, would be as many as before: calls are refused by
        chance.
        """
        limit, rate_then = self._fall or (self.limit, rate)
        fell = self.limit / limit
        if self._fall is None or rate >= PROPORTIONAL * fell * rate_then:
            self._fall = self.limit, rate
            return False
        if self._answers < ENOUGH or fell >= FELL:
            return False
        self.limit, self._fall, self._was_refused = limit, None, False
        return True

    def _begin(self, now: float) -> None:
        """Begin a new generation."""
        self.generation += 1
        self._sent = self._refused = 0.0
        self._answers = 0
        self._since = now
