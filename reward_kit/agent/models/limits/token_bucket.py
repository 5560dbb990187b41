"""Limits per minute: ``--rpm`` and ``--tpm``."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Usage
    from reward_kit.agent.models.calls import Call

MINUTE = 60.0
SLACK = 1.01
"""The window is this much longer here, since a request may take longer to arrive than the one after it."""
BURST = 1 / 60
"""Share of the window's amount that may come at once; the rest is spread evenly."""
REMEMBERED, TOKENS_PER_CHARACTER = 32, 0.25
"""Calls from which the tokens of the next one are estimated; those of a character before the first answer."""


class TokenBucket:
    """At most ``limit`` in any minute, spread over it.

    An amount that is taken counts from the moment it is taken until a minute after it was settled.
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._window = MINUTE * SLACK
        self._settled: deque[tuple[float, float]] = deque()
        self._counted = 0.0  # what is open and settled
        self._next = -math.inf

    def delay(self, amount: float, now: float) -> float:
        """Seconds until ``amount`` may be taken; infinite if another amount has to be settled first.

        An amount above the limit may be taken when nothing else counts.
        """
        while self._settled and self._settled[0][0] <= now - self._window:
            self._counted -= self._settled.popleft()[1]
        wait = max(0.0, self._next - BURST * MINUTE - now)
        excess = self._counted + min(amount, self.limit) - self.limit
        for time, settled in self._settled:
            if excess <= 1e-9:
                break
            excess -= settled
            wait = max(wait, time + self._window - now)
        return wait if excess <= 1e-9 else math.inf

    def take(self, amount: float, now: float) -> None:
        """Count ``amount``; ``settle`` has to follow."""
        self._counted += amount
        self._next = max(self._next, now) + amount * self._window / self.limit

    def settle(self, amount: float, actual: float, now: float) -> None:
        """Replace an ``amount`` that was taken by the ``actual`` one."""
        self._counted += actual - amount
        self._next += (actual - amount) * self._window / self.limit
        if actual > 0:
            self._settled.append((now, actual))


class RateLimits:
    """``rpm`` requests and ``tpm`` tokens in any minute; None: no limit.

    The tokens of a call are estimated until it is answered: the characters of its request, times the most
    tokens that a character has come to in recent calls, plus the longest of their answers.
    """

    def __init__(self, rpm: float | None, tpm: float | None) -> None:
        self._requests = TokenBucket(rpm) if rpm else None
        self._tokens = TokenBucket(tpm) if tpm else None
        self._per_character: deque[float] = deque(maxlen=REMEMBERED)
        self._outputs: deque[int] = deque(maxlen=REMEMBERED)
        self._open = 0

    def delay(self, call: Call, now: float) -> float:
        """Seconds until the call may be made; infinite if another has to end first."""
        wait = 0.0 if self._requests is None else self._requests.delay(1, now)
        if self._tokens is None:
            return wait
        if self._open and not self._outputs:
            return math.inf
        return max(wait, self._tokens.delay(self._estimate(call), now))

    def take(self, call: Call, now: float, *, sent: bool) -> None:
        """Count a call; ``settle`` has to follow. Unless it is ``sent`` now its minute begins at its end."""
        self._open += 1
        call.is_sent = sent
        if self._requests is not None:
            self._requests.take(1, now)
            if sent:
                self._requests.settle(1, 1, now)
        if self._tokens is not None:
            call.reserved = self._estimate(call)
            self._tokens.take(call.reserved, now)

    def settle(self, call: Call, usage: Usage | None, now: float, *, spent: bool) -> None:
        """Count the end of a call; without ``usage`` it used the estimate, or nothing if not ``spent``."""
        self._open -= 1
        if self._requests is not None and not call.is_sent:
            self._requests.settle(1, 1, now)
        if self._tokens is None:
            return
        actual = call.reserved if spent else 0
        if usage is not None:
            actual = usage.input_tokens + usage.output_tokens
            self._per_character.append(usage.input_tokens / max(1, call.size))
            self._outputs.append(usage.output_tokens)
        self._tokens.settle(call.reserved, actual, now)

    def _estimate(self, call: Call) -> int:
        per_character = max(self._per_character, default=TOKENS_PER_CHARACTER)
        return max(1, math.ceil(call.size * per_character) + max(self._outputs, default=0))
