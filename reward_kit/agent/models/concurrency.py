"""The number of calls that a provider takes at once, learned from its answers and refusals.

Additive increase, multiplicative decrease, as TCP does it, in units of calls in flight. The number may fall
below one: calls are then spaced further apart than an answer takes, so that a provider that takes one call a
second is followed as well as one that takes fifty at once.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_kit.agent.models.calls import Call

START = 16.0
"""Calls at once before anything is known; doubled in the time of an answer until the first refusal."""
RESTART = 2.0
"""Calls at once after an outage."""
LONGEST_SPACING = 10.0
"""Seconds; fewer calls than one in this time are left to the pauses that refusals bring."""
TOLERATED, MOST_TOLERATED = 0.17, 0.8
"""Share of refused calls without a named time that is taken for chance: no fewer calls are made for it."""
LEAST_KEPT, MOST_KEPT = 0.5, 0.9
"""Bounds of the factor by which the number shrinks; between them it is the share of calls that were taken."""
MEMORY = 64
"""Calls after which what was counted is halved."""
GROWTH = 0.05
"""Share of the number that was refused last, by which it grows in the time of an answer."""
LEAST_ANSWERS = 24
"""Least number of answers in which it grows by a fifth."""
PAUSES_BETWEEN = 10.0
"""Times of a named pause in which the number grows by a fifth, so that probing costs a tenth of the time."""
SILENCE = 2.0
"""Times of an answer, or between two calls, without a good one: the calls of the second are used up."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds of the first pause in such a silence, doubled with each further one."""
SPREAD = 0.95
"""Share of an answer's time over which the calls at once are spread once one has been refused."""
SMOOTHING = 8
"""Answers over which their time is averaged."""
FELL = 0.6
"""Share to which the number has to fall before it is judged if that has helped."""
PROPORTIONAL = 1.25
"""Factor by which the answers per second may exceed that share and still count as proportional to it."""
ENOUGH = 5
"""Answers that it takes to judge."""

_random = random.SystemRandom()


class Concurrency:
    """A number of calls at once, at most ``ceiling``. All times are seconds of one clock.

    A call notes the ``generation`` when it is sent: refusals of calls that were sent before the number last
    shrank say nothing about the new number.
    """

    def __init__(self, ceiling: int) -> None:
        self.ceiling = float(ceiling)
        self.limit = min(START, self.ceiling)
        self.latency = 0.0
        self.generation = 0
        self._refused_at = math.inf
        self._paced = False
        self._tolerated = TOLERATED
        self._last_answer = -math.inf
        self._pauses = 0
        self._named = 0.0
        self._fall: tuple[float, float] | None = None
        self._since: float | None = None
        self._sent = self._refused = self._growth = 0.0
        self._answers = 0

    @property
    def at_once(self) -> int:
        """Calls that may be in flight together; at least one."""
        return max(1, int(self.limit + 1e-9))

    @property
    def spacing(self) -> float:
        """Seconds between the starts of two calls."""
        return min(LONGEST_SPACING, SPREAD * self.latency / self.limit) if self._paced else 0.0

    def sent(self, call: Call, now: float) -> None:
        """Count a call that is sent."""
        if self._since is None:
            self._since = now
        call.generation = self.generation
        self._sent += 1
        if self._sent >= MEMORY:
            self._sent /= 2
            self._refused /= 2

    def answered(self, call: Call, now: float, *, full: bool) -> None:
        """Count a good answer; ``full``: there was no room for more calls."""
        self.latency += (now - call.sent - self.latency) / (SMOOTHING if self.latency else 1)
        self._last_answer = now
        self._answers += 1
        self._pauses = 0
        if full and call.generation == self.generation:
            step = 1.0
            if self._refused_at < math.inf:
                answers = max(LEAST_ANSWERS, PAUSES_BETWEEN * self._named * self.limit / self.latency)
                step = self._refused_at * min(GROWTH / self.limit, 0.2 / answers)
                if self.limit >= self._refused_at:  # the provider takes more than it did: grow ever faster
                    self._growth += 1 / max(1.0, self.limit)
                    step *= 1 + self._growth
            self.limit = min(self.ceiling, self.limit + step)

    def refused(self, call: Call, now: float, *, named: float = 0.0, doubt: float = 1.0) -> float:
        """Count a refused call; returns the seconds of a pause for all calls.

        ``named`` is the pause that the provider asks for, if any; such a refusal always counts. ``doubt``
        is a factor of the tolerated share, for failures that may have other reasons than too many calls.
        """
        self._paced = True
        if call.generation != self.generation or self._since is None:
            return 0.0
        self._refused += 1
        share = self._refused / max(1.0, self._sent)
        if not named:
            seconds = now - self._since
            if share < doubt * self._tolerated or self._refused < 2 or seconds < self.latency:
                return 0.0
            if self.latency and now - self._last_answer > SILENCE * max(self.latency, self.spacing):
                return self._pause(now)
            if self._answers and self._undo(self._answers / max(1e-3, seconds)):
                self._tolerated = min(MOST_TOLERATED, 2.0 * share)
                self._begin(now)
                return 0.0
        if self._refused_at < math.inf and not self._answers:
            return 0.0  # no call has got through since the last decrease: the same reason still holds
        self._named = named
        self._refused_at = self.limit
        lowest = SPREAD * self.latency / LONGEST_SPACING
        self.limit = max(lowest, self.limit * min(MOST_KEPT, max(LEAST_KEPT, 1.0 - share)))
        self._begin(now)
        return 0.0

    def restart(self, now: float) -> None:
        """Begin with few calls again."""
        self.limit = min(self.limit, RESTART)
        self._begin(now)

    def _pause(self, now: float) -> float:
        self._begin(now)
        self._tolerated, self._fall = TOLERATED, None
        self._pauses += 1
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._pauses - 1, 10))
        return longest * _random.uniform(0.5, 1.0)

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
        self.limit, self._fall, self._refused_at = limit, None, math.inf
        return True

    def _begin(self, now: float) -> None:
        """Begin a new generation."""
        self.generation += 1
        self._sent = self._refused = self._growth = 0.0
        self._answers = 0
        self._since = now
