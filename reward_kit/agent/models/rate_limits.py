"""Requests and tokens per minute that calls to one provider never exceed (``--rpm``, ``--tpm``)."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Usage

MINUTE = 60.0
SLACK = 1.01
"""The window is this much longer here, since a request may take longer to arrive than the one after it."""
BURST = 1 / 60
"""Share of the window's amount that may come at once; the rest is spread evenly."""
REMEMBERED = 32
"""Calls from which the size of the next one is estimated."""
TOKENS_PER_CHARACTER = 0.25


class Bucket:
    """At most ``limit`` in any ``window`` seconds, spread over it. All times are seconds of one clock.

    An amount that is taken counts from the moment it is taken until a window after it was settled.
    """

    def __init__(self, limit: float, *, window: float = MINUTE) -> None:
        self.limit = limit
        self._window = window * SLACK
        self._burst = window * BURST
        self._settled: deque[tuple[float, float]] = deque()
        self._settled_sum = 0.0
        self._open_sum = 0.0
        self._next = -math.inf

    def delay(self, amount: float, now: float) -> float:
        """Seconds until ``amount`` may be taken; infinite if another amount has to be settled first.

        An amount above the limit may be taken when nothing else counts.
        """
        while self._settled and self._settled[0][0] <= now - self._window:
            self._settled_sum -= self._settled.popleft()[1]
        if not self._settled:
            self._settled_sum = 0.0  # clears rounding errors
        return max(0.0, self._next - self._burst - now, self._until_room(amount, now))

    def take(self, amount: float, now: float) -> None:
        """Count ``amount``; ``settle`` has to follow."""
        self._open_sum += amount
        self._next = max(self._next, now) + amount * self._window / self.limit

    def settle(self, amount: float, actual: float, now: float) -> None:
        """Replace an ``amount`` that was taken by the ``actual`` one."""
        self._open_sum = max(0.0, self._open_sum - amount)
        if actual > 0:
            self._settled.append((now, actual))
            self._settled_sum += actual
        self._next += (actual - amount) * self._window / self.limit

    def _until_room(self, amount: float, now: float) -> float:
        excess = self._open_sum + self._settled_sum + amount - self.limit
        if excess <= 0 or not (self._settled or self._open_sum):
            return 0.0
        if amount >= self.limit:
            excess = self._open_sum + self._settled_sum
        for time, settled in self._settled:
            excess -= settled
            if excess <= 1e-9:
                return time + self._window - now
        return math.inf


class TokenEstimate:
    """An estimate of the tokens of a call, from the size of its request and the use of earlier ones."""

    def __init__(self) -> None:
        self._per_character: deque[float] = deque(maxlen=REMEMBERED)
        self._outputs: deque[int] = deque(maxlen=REMEMBERED)

    @property
    def known(self) -> bool:
        """True once a call has reported its tokens; until then one call at a time is made."""
        return bool(self._outputs)

    def tokens(self, size: int) -> int:
        """Tokens of a call whose request has ``size`` characters: rather too many than too few."""
        per_character = max(self._per_character, default=TOKENS_PER_CHARACTER)
        return max(1, math.ceil(size * per_character) + max(self._outputs, default=0))

    def learn(self, size: int, usage: Usage) -> None:
        """Take in the use of an answered call."""
        self._per_character.append(usage.input_tokens / max(1, size))
        self._outputs.append(usage.output_tokens)


@dataclass(slots=True)
class Reservation:
    """The share of the limits that one call holds; ``size`` is the number of characters of its request."""

    size: int
    tokens: int = 0
    sent: bool = False


class RateLimits:
    """``rpm`` requests and ``tpm`` tokens in any minute; None: no limit. Used in one event loop."""

    def __init__(self, rpm: float | None, tpm: float | None) -> None:
        self._requests = Bucket(rpm, window=MINUTE) if rpm else None
        self._tokens = Bucket(tpm, window=MINUTE) if tpm else None
        self._estimate = TokenEstimate()
        self._open = 0

    @property
    def wants_size(self) -> bool:
        """True if the length of requests matters."""
        return self._tokens is not None

    def delay(self, size: int, now: float) -> float:
        """Seconds until a call of ``size`` may be made; infinite if another has to end first."""
        wait = 0.0
        if self._requests is not None:
            wait = self._requests.delay(1, now)
        if self._tokens is not None:
            if self._open and not self._estimate.known:
                return math.inf
            wait = max(wait, self._tokens.delay(self._estimate.tokens(size), now))
        return wait

    def take(self, size: int, now: float) -> Reservation:
        """Count a call; ``sent`` and ``settle`` have to follow."""
        reservation = Reservation(size)
        self._open += 1
        if self._requests is not None:
            self._requests.take(1, now)
        if self._tokens is not None:
            reservation.tokens = self._estimate.tokens(size)
            self._tokens.take(reservation.tokens, now)
        return reservation

    def sent(self, reservation: Reservation, now: float) -> None:
        """Begin the minute of a call's request, which is being sent."""
        if not reservation.sent and self._requests is not None:
            self._requests.settle(1, 1, now)
        reservation.sent = True

    def settle(self, reservation: Reservation, usage: Usage | None, now: float, *, spent: bool) -> None:
        """Count the end of a call; without ``usage`` it used the estimate, or nothing if not ``spent``."""
        self.sent(reservation, now)
        self._open -= 1
        if self._tokens is None:
            return
        actual = reservation.tokens if spent else 0
        if usage is not None:
            actual = usage.input_tokens + usage.output_tokens
            self._estimate.learn(reservation.size, usage)
        self._tokens.settle(reservation.tokens, actual, now)
