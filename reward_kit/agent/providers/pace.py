"""Hard limits: so many requests, or tokens, in any minute."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_kit.agent.completion import Usage

MINUTE = 60.0
SLACK = 1.01
"""The window is this much longer here, since a request may take longer to arrive than the one after it."""
BURST = 1 / 60
"""Part of the window's amount that may come at once; what is beyond is spread evenly."""
REMEMBERED = 32
"""Calls from which the size of the next one is guessed."""


class Pace:
    """At most ``limit`` in any ``window`` seconds, spread over it. All times are seconds of one clock.

    What is taken counts from the moment it is taken until a window after it was settled.
    """

    def __init__(self, limit: float, *, window: float = MINUTE) -> None:
        self.limit = limit
        self._window = window * SLACK
        self._burst = window * BURST
        self._past: deque[tuple[float, float]] = deque()
        self._past_sum = 0.0
        self._open_sum = 0.0
        self._next = -math.inf

    def delay(self, cost: float, now: float) -> float:
        """Seconds until ``cost`` may be taken; infinite if something else has to be settled first.

        A cost above the limit may be taken when nothing else counts.
        """
        self._forget(now)
        return max(0.0, self._next - self._burst - now, self._until_room(cost, now))

    def take(self, cost: float, now: float) -> None:
        """Count ``cost``, which ``settle`` has to follow."""
        self._open_sum += cost
        self._next = max(self._next, now) + cost * self._window / self.limit

    def settle(self, cost: float, actual: float, now: float) -> None:
        """Say what was taken as ``cost`` has come to."""
        self._open_sum = max(0.0, self._open_sum - cost)
        if actual > 0:
            self._past.append((now, actual))
            self._past_sum += actual
        self._next += (actual - cost) * self._window / self.limit

    def _until_room(self, cost: float, now: float) -> float:
        excess = self._open_sum + self._past_sum + cost - self.limit
        if excess <= 0 or not (self._past or self._open_sum):
            return 0.0
        if cost >= self.limit:
            excess = self._open_sum + self._past_sum
        for time, amount in self._past:
            excess -= amount
            if excess <= 1e-9:
                return time + self._window - now
        return math.inf

    def _forget(self, now: float) -> None:
        past = self._past
        while past and past[0][0] <= now - self._window:
            self._past_sum -= past.popleft()[1]
        if not past:
            self._past_sum = 0.0  # whatever rounding has left


class TokenGuess:
    """How many tokens a call is going to use, from the size of its request and what others have used."""

    def __init__(self) -> None:
        self._per_character: deque[float] = deque(maxlen=REMEMBERED)
        self._outputs: deque[int] = deque(maxlen=REMEMBERED)

    @property
    def known(self) -> bool:
        """Whether a call has told what calls use; until then one at a time is asked."""
        return bool(self._outputs)

    def tokens(self, size: int) -> int:
        """Tokens of a call whose request has ``size`` characters: rather too many than too few."""
        per_character = max(self._per_character, default=0.25)
        return max(1, math.ceil(size * per_character) + max(self._outputs, default=0))

    def learn(self, size: int, usage: Usage) -> None:
        """A call has been answered."""
        self._per_character.append(usage.input_tokens / max(1, size))
        self._outputs.append(usage.output_tokens)
