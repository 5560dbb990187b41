"""The number of calls that a provider takes at once, learned from its answers and refusals."""

from __future__ import annotations

import math

from reward_kit.agent.base.network import backoff

START = 16.0
"""Calls at once at first, doubled in the time of an answer until the number shrinks."""
DECREASE, TOLERATED = 0.75, 0.1
"""Factor by which the number shrinks, and the share of refused calls up to which it does not."""
INCREASE, SLOWER_BELOW = 0.1, 8.0
"""Share by which it grows in the time of an answer; half of that at the second number, less below it."""
LONGEST_PAUSE = 10.0
"""Seconds; the longest pause, and the longest time between two calls."""
FELL, PROPORTIONAL, ENOUGH, BY_CHANCE = 0.6, 1.25, 5, 60.0
"""A fall to less than this share is taken back, and none follows for so many seconds, if after so many
answers their rate has fallen nearly in proportion: refusals do not depend on the number."""


class AIMD:
    """Additive increase, multiplicative decrease of the calls in flight, as in TCP; ``ceiling`` at most.

    The ``limit`` may fall below one: calls are then further apart than an answer takes, the ``latency``.
    """

    def __init__(self, ceiling: float, start: float = START) -> None:
        self.ceiling = ceiling
        self.latency = 0.0
        self._pauses = 0
        self._last_answer = self._by_chance_until = -math.inf
        self._slow_start = True
        self._begin(-math.inf, min(start, ceiling))

    def _begin(self, now: float, limit: float, peak: tuple[float, float] = (1.0, 0.0)) -> None:
        """Begin to count; ``peak`` is the limit at which a fall began, and the answers per second then."""
        self.limit, self._since, self._peak = limit, now, peak
        self._sent = self._refused = self._answers = 0

    @property
    def at_once(self) -> int:
        """Calls that may be in flight together; at least one."""
        return max(1, int(self.limit + 1e-9))

    def sent(self) -> float:
        """Count a call; returns the seconds until the next one, to spread them over the time of an answer."""
        self._sent += 1
        return 0.0 if self._slow_start else min(LONGEST_PAUSE, 0.95 * self.latency / self.limit)

    def answered(self, sent: float, now: float, *, full: bool) -> None:
        """Count a good answer to a call ``sent`` at that time; ``full``: there was no room for more calls."""
        self.latency += (now - sent - self.latency) / (8 if self.latency else 1)
        self._last_answer, self._pauses = now, 0
        self._answers += 1
        if full and sent >= self._since:
            step = 1.0 if self._slow_start else INCREASE * self.limit / (self.limit + SLOWER_BELOW)
            self.limit = min(self.ceiling, self.limit + step)

    def refused(self, sent: float, now: float, *, named: bool) -> float:
        """Count a refusal, which may have ``named`` a time to wait; returns the seconds of a pause if not.

        Refusals of calls that were sent before the number last changed say nothing about the new one.
        """
        if sent < self._since:
            return 0.0
        self._refused += 1
        elapsed = now - self._since
        if elapsed < self.latency or not (named or self._refused > 1 + TOLERATED * self._sent):
            return 0.0
        silence = max(self.latency, self.latency / self.limit)
        if not named and now - self._last_answer > 2 * silence > 0:  # the calls of a window are used up
            self._pauses += 1
            self._begin(now, self.limit)
            return min(LONGEST_PAUSE, backoff(self._pauses, first=0.1))
        if now < self._by_chance_until or not (self._answers or self._slow_start):
            return 0.0  # without an answer the reason of the last decrease still holds
        (limit, best), rate = self._peak, self._answers / elapsed
        proportional = rate < PROPORTIONAL * best * self.limit / limit
        self._slow_start = proportional and self.limit < FELL * limit and self._answers >= ENOUGH
        if self._slow_start:
            self._by_chance_until = now + BY_CHANCE
            self._begin(now, limit)
        else:
            less = max(self.latency / LONGEST_PAUSE, self.limit * DECREASE)
            self._begin(now, less, self._peak if proportional else (self.limit, rate))
        return 0.0
