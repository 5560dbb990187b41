"""How far apart calls set out to a provider that refuses calls and names no time for the next."""

from __future__ import annotations

import math
from collections import deque

SPREAD = 0.95
"""Part of an answer's time over which the calls at once are spread. Where one call a second is taken, one
that sets out together with another is refused, as if only one at once were taken."""
BRIEF = 0.005
"""Seconds; shorter spaces than these are not kept."""
LONG = 0.1
"""Seconds; a provider that names a shorter time takes calls one by one, so far apart."""
FEW = 4
"""Calls, at most, that are let through from one refusal to the next where the times that are named tell how
far apart they have to be; of more, many are let through at once."""
LATELY = 8
"""Answers over which their time is averaged."""
SLACK = 1.1
"""Part by which calls are further apart than those that were answered lately,"""
MOST_SLACK = 1.25
"""and at most, than what is known to have helped."""
EASE = 1.02
"""Part by which they come closer with each good answer,"""
CLOSEST = 0.01
"""until they are so many seconds apart: then nothing holds them back."""
LONGEST = 10.0
"""Seconds; a provider that takes fewer calls counts them by the minute, and pauses serve that better."""
HELPED = 8
"""Good answers between two refusals that show that the spacing helps."""
TRIES, PROVEN_TRIES = 4, 16
"""Refusals in a row that it may fail to help against; more where a trial has shown that they are not chance.
With one more the provider has another reason to refuse, and the spacing is left alone"""
FIRST_REST = 64
"""for so many good answers, twice as many each time."""
CRAMPED = 2
"""Refusals, the first of all, that named a time after no more than that: they show that it takes calls one by
one, and that those which set out together when a pause is over are refused again."""
FAR_MORE = 4.0
"""So many times as often calls were let through lately, from one of the last"""
REFUSALS = 4
"""to the next, where a refusal is no limit's."""


class Spacing:
    """Spreads the calls at once, and learns how often a provider takes a call from when it refuses one alone.

    Fewer calls at once cannot help there. All times are seconds of one clock.
    """

    __slots__ = (
        "_cramped",
        "_helped",
        "_in_vain",
        "_last",
        "_lately",
        "_longest_told",
        "_proven",
        "_rest",
        "_resting",
        "_roomy",
        "_safe",
        "_seconds",
        "_since",
        "_spreading",
        "_until",
        "latency",
    )

    def __init__(self) -> None:
        self._seconds = 0.0
        self._helped = math.inf
        self._last = -math.inf
        self._lately: deque[float] = deque(maxlen=REFUSALS)
        self._since = -math.inf
        self._until = -math.inf
        self._longest_told = 0.0
        self._in_vain = 0
        self._rest = FIRST_REST
        self._resting = 0
        self._safe = 0.0
        self._proven = False
        self.latency = 0.0
        self._spreading = False
        self._cramped = 0
        self._roomy = False

    @property
    def is_cramped(self) -> bool:
        """Whether calls are spread although times are named: of those that come together, few get through."""
        return self._cramped >= CRAMPED and not self._roomy

    def suits(self, passed: int) -> bool:
        """Whether calls are kept apart and that helps, when ``passed`` were let through since a refusal."""
        return self._seconds > 0.0 and passed >= HELPED

    def rest(self) -> None:
        """Hold nothing back, for a trial whether it is by chance that calls are refused."""
        self._safe, self._seconds = self._seconds, 0.0
        self._proven = False

    def resume(self) -> None:
        """It is not: go back to what was known before, and do not take it for chance."""
        self._seconds = self._safe
        self._lately.clear()
        self._since = -math.inf
        self._resting = 0
        self._proven = True

    def sent(self, now: float) -> None:
        """A call has set out."""
        self._last = now

    def answered(self, seconds: float) -> None:
        """A good answer came after so long."""
        self.latency += (seconds - self.latency) / (LATELY if self.latency else 1)
        self._resting -= 1
        self._seconds /= EASE
        if self._seconds < CLOSEST:
            self._seconds = 0.0

    def refused(self, now: float, passed: int, *, alone: bool, told: float) -> bool:
        """A call was refused, after so many had been let through; ``alone``: no other was under way.

        ``told``: the seconds that were named until the next call, or 0. Returns whether it is odd: the call
        was alone, and others were let through far more often lately. That tells of no space.
        """
        if told < LONG:
            self._spreading = True
        elif passed and not self.is_cramped:
            self._roomy = self._roomy or passed > HELPED
            self._cramped += 1
            self._spreading = self.is_cramped
        since, self._since = self._since, now
        space = self._space(now, now - since, passed, told, alone=alone)
        if not told and self._fewer(now - since, passed) and alone:
            return True
        if space is not None and self._resting <= 0:
            self._learn(space, passed)
        return False

    def _fewer(self, seconds: float, passed: int) -> bool:
        """Whether so many in so many seconds since the last refusal are far fewer than lately."""
        if not passed or seconds == math.inf:
            return False
        rate = passed / max(seconds, BRIEF)
        fewer = FAR_MORE * rate < max(self._lately, default=0.0)
        if passed > 1:
            self._lately.append(rate)
        return fewer

    def _learn(self, space: float, passed: int) -> None:
        """Calls were refused although they were so far apart; ``passed`` were let through before."""
        if passed < HELPED:
            self._in_vain += 1
        else:
            self._in_vain = 0
            self._helped = min(self._helped, self._seconds or math.inf)
        if self._in_vain <= (PROVEN_TRIES if self._proven else TRIES):
            self._seconds = min(LONGEST, MOST_SLACK * self._helped, SLACK * space)
        else:
            self._seconds, self._helped, self._in_vain = 0.0, math.inf, 0
            self._resting, self._rest = self._rest, 2 * self._rest

    def _space(self, now: float, seconds: float, passed: int, told: float, *, alone: bool) -> float | None:
        """Seconds between the calls that were let through since the last refusal, so many seconds ago, if
        they tell of a rate.
        """
        until, self._until = self._until, now + told if told >= LONG else -math.inf
        if not passed:
            return None
        if told >= LONG:
            one_by_one = alone and passed <= FEW and -math.inf < until < self._until
            self._longest_told = max(self._longest_told, told)
            return min(self._longest_told, (self._until - until) / passed) if one_by_one else None
        return seconds / passed if alone and seconds < math.inf else None

    def wait(self, now: float, at_once: float) -> float:
        """Seconds until the next call sets out, with so many ``at_once``; infinite if none is on its way."""
        space = self._seconds
        if self._spreading:
            even = SPREAD * self.latency / max(1.0, at_once)
            if even >= BRIEF:
                space = max(space, even)
        return self._last + space - now if space else 0.0
