"""When a provider wants to be left alone, and how calls set out again after that."""

from __future__ import annotations

import math
import random

CALM = 1.0
"""Seconds after a pause in which calls are let through one by one,"""
SPACING = 0.01
"""so many seconds apart."""
SHORT_WAIT, LONGEST_WAIT = 0.5, 10.0
"""Seconds of the first pause after a refusal that names none; doubled with each further one up to the other,
and the shorter the more good answers came before it.
"""
ROUNDING = 0.01
"""Seconds by which a time may be off, above all one that a provider names."""

_chance = random.SystemRandom()


class Pauses:
    """Until when no call is made, or only so many more. All times are seconds of one clock."""

    __slots__ = ("_calm_until", "_last", "_left", "_left_until", "_quiet_after", "closed_until")

    def __init__(self) -> None:
        self.closed_until = 0.0
        self._calm_until = 0.0
        self._left = math.inf
        self._left_until = 0.0
        self._quiet_after = 0.0
        self._last = 0.0

    def close(self, until: float) -> None:
        """No call until then."""
        self.closed_until = max(self.closed_until, until)
        self.calm(until)

    def open_by(self, end: float) -> None:
        """No pause is longer than this."""
        self.closed_until = min(self.closed_until, end)

    def leave(self, calls: int, until: float) -> None:
        """So many calls until then."""
        self._left, self._left_until = calls, until
        self._quiet_after = max(self._quiet_after, until)

    def calm(self, begin: float) -> None:
        """From ``begin`` on, let calls set out one by one for a while."""
        self._calm_until = max(self._calm_until, begin + CALM)
        self._quiet_after = max(self._quiet_after, self._calm_until)

    def admitted(self, now: float) -> None:
        """A call has set out."""
        self._last = now
        self._left -= 1

    def wait(self, now: float) -> float:
        """Seconds until the next call may set out."""
        if now >= self._quiet_after:
            return 0.0
        wait = self.closed_until - now
        if now < self._calm_until:
            wait = max(wait, self._last + SPACING - now)
        if self._left < 1 and now < self._left_until:
            wait = max(wait, self._left_until - now)
            self.calm(self._left_until)
        return wait


def short_wait(refusals: int, answers: int) -> float:
    """Seconds of a pause after so many refusals in a row that name no time, with ``answers`` between."""
    longest = min(LONGEST_WAIT, SHORT_WAIT * 2.0 ** min(refusals - 1, 10)) / (1 + answers)
    return longest * _chance.uniform(0.5, 1.0)


def jitter(seconds: float) -> float:
    """What is added to a time that a provider has named.

    So that several processes do not come back at the same moment, nor one that rounds too early.
    """
    return ROUNDING + _chance.uniform(0.0, min(1.0, 0.1 * seconds))


def soon(seconds: float) -> float:
    """Seconds until a call that failed after so many is made again, where nothing has to pass first.

    No longer than a pause: one that got no answer in time has waited already.
    """
    return _chance.uniform(0.0, min(2.0 * seconds, SHORT_WAIT))
