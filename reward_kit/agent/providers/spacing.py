"""How far apart calls set out to a provider that refuses even one call at a time."""

from __future__ import annotations

import math

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


class Spacing:
    """Learns how often a provider that names no times takes a call, from when it refuses one that was alone.

    Fewer calls at once cannot help there. All times are seconds of one clock.
    """

    __slots__ = (
        "_helped",
        "_in_vain",
        "_last",
        "_proven",
        "_rest",
        "_resting",
        "_safe",
        "_seconds",
        "_since",
    )

    def __init__(self) -> None:
        self._seconds = 0.0
        self._helped = math.inf
        self._last = -math.inf
        self._since = -math.inf
        self._in_vain = 0
        self._rest = FIRST_REST
        self._resting = 0
        self._safe = 0.0
        self._proven = False

    def rest(self) -> None:
        """Hold nothing back, for a trial whether it is by chance that calls are refused."""
        self._safe, self._seconds = self._seconds, 0.0
        self._proven = False

    def resume(self) -> None:
        """It is not: go back to what was known before, and do not take it for chance."""
        self._seconds = self._safe
        self._since = -math.inf
        self._resting = 0
        self._proven = True

    def sent(self, now: float) -> None:
        """A call has set out."""
        self._last = now

    def answered(self) -> None:
        """A good answer came."""
        self._resting -= 1
        self._seconds /= EASE
        if self._seconds < CLOSEST:
            self._seconds = 0.0

    def refused(self, now: float, answers: int, *, alone: bool) -> None:
        """A call was refused, after so many good ``answers``; ``alone``: no other was under way."""
        since, self._since = self._since, now
        if not alone or not answers or self._resting > 0 or since == -math.inf:
            return
        if answers < HELPED:
            self._in_vain += 1
        else:
            self._in_vain = 0
            self._helped = min(self._helped, self._seconds or math.inf)
        if self._in_vain <= (PROVEN_TRIES if self._proven else TRIES):
            self._seconds = min(LONGEST, MOST_SLACK * self._helped, SLACK * (now - since) / answers)
        else:
            self._seconds, self._helped, self._in_vain = 0.0, math.inf, 0
            self._resting, self._rest = self._rest, 2 * self._rest

    def wait(self, now: float) -> float:
        """Seconds until the next call may set out."""
        return self._last + self._seconds - now if self._seconds else 0.0
