"""Three limits of a provider: calls in flight, amounts per minute, and pauses of all calls."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from reward_kit.agent.base.network import backoff

if TYPE_CHECKING:
    from collections.abc import Hashable

    from reward_kit.agent.base.types import Usage
    from reward_kit.agent.models.calls import Call

# -- calls in flight

START = 50.0
"""Calls at once at first, tripled in the time of an answer until the number shrinks."""
FIRST_DECREASE, DECREASE, TOLERATED = 0.5, 0.75, 0.1
"""Factors by which the number shrinks, first and later; share of refused calls up to which it does not."""
INCREASE, SLOWER_BELOW = 0.1, 8.0
"""Share by which it grows in the time of an answer; half of that at the second number, less below it."""
LONGEST_PAUSE = 10.0
"""Seconds; the longest pause, and the longest time between two calls."""
FELL, SOON, PROPORTIONAL, ENOUGH, BY_CHANCE = 0.5, 3.0, 1.25, 5, 60.0
"""A fall to less than this share, each decrease within so many times of an answer, is taken back, and none
follows for so many seconds, if after so many answers their rate has fallen nearly in proportion: refusals do
not depend on the number."""


class AIMD:
    """Additive increase, multiplicative decrease of the calls in flight, as in TCP; ``ceiling`` at most.

    The ``limit`` may fall below one: calls are then further apart than an answer takes, the ``latency``.
    """

    def __init__(self, ceiling: float, start: float = START) -> None:
        self.ceiling, self.latency = ceiling, 0.0
        self._pauses, self._slow_start = 0, True
        self._last_answer = self._by_chance_until = -math.inf
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
            step = 2.0 if self._slow_start else INCREASE * self.limit / (self.limit + SLOWER_BELOW)
            self.limit = min(self.ceiling, self.limit + step)

    def refused(self, sent: float, now: float, *, named: bool) -> float:
        """Count a refusal, which may have ``named`` a time to wait; returns the seconds of a pause if not.

        Refusals of calls that were sent before the number last changed say nothing about the new one.
        """
        elapsed = now - self._since
        if sent < self._since:
            return 0.0
        self._refused += 1
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
        # later, a window may have been refilled meanwhile: its rates say nothing about the number
        soon = elapsed < SOON * silence or self.limit < SLOWER_BELOW
        proportional = soon and rate < PROPORTIONAL * best * self.limit / limit
        if proportional and self.limit < FELL * limit and self._answers >= ENOUGH:
            self._slow_start, self._by_chance_until = True, now + BY_CHANCE
            self._begin(now, limit)
            return 0.0
        factor = FIRST_DECREASE if self._slow_start and self.limit > SLOWER_BELOW else DECREASE
        less, self._slow_start = max(self.latency / LONGEST_PAUSE, self.limit * factor), False
        self._begin(now, less, self._peak if proportional else (self.limit, rate))
        return 0.0


# -- amounts per minute: ``--rpm`` and ``--tpm``

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
        self.limit, self._window = limit, MINUTE * SLACK
        self._settled: deque[tuple[float, float]] = deque()
        self._counted, self._next = 0.0, -math.inf  # what is open and settled

    def delay(self, amount: float, now: float) -> float:
        """Seconds until ``amount`` may be taken; infinite if another amount has to be settled first.

        An amount above the limit may be taken when nothing else counts.
        """
        while self._settled and self._settled[0][0] <= now - self._window:
            self._counted -= self._settled.popleft()[1]
        wait = max(0.0, self._next - BURST * MINUTE - now)
        excess = self._counted + min(amount, self.limit) - self.limit
        for moment, settled in self._settled:
            if excess <= 1e-9:
                break
            excess -= settled
            wait = max(wait, moment + self._window - now)
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
        self._requests, self._tokens = (TokenBucket(limit) if limit else None for limit in (rpm, tpm))
        self._recent: deque[tuple[float, int]] = deque(maxlen=REMEMBERED)
        self._open = 0

    def delay(self, call: Call, now: float) -> float:
        """Seconds until the call may be made; infinite if another has to end first."""
        wait = self._requests.delay(1, now) if self._requests else 0.0
        if self._tokens is None:
            return wait
        is_first = self._open and not self._recent
        return math.inf if is_first else max(wait, self._tokens.delay(self._estimate(call), now))

    def take(self, call: Call, now: float, *, sent: bool) -> None:
        """Count a call; ``settle`` has to follow. Unless it is ``sent`` now its minute begins at its end."""
        self._open += 1
        call.is_sent = sent
        if self._requests:
            self._requests.take(1, now)
            if sent:
                self._requests.settle(1, 1, now)
        if self._tokens:
            call.reserved = self._estimate(call)
            self._tokens.take(call.reserved, now)

    def settle(self, call: Call, usage: Usage | None, now: float, *, spent: bool) -> None:
        """Count the end of a call; without ``usage`` it used the estimate, or nothing if not ``spent``."""
        self._open -= 1
        if self._requests and not call.is_sent:
            self._requests.settle(1, 1, now)
        if self._tokens:
            actual = call.reserved if spent else 0
            if usage is not None:
                actual = usage.tokens
                self._recent.append((usage.input_tokens / max(1, call.size), usage.output_tokens))
            self._tokens.settle(call.reserved, actual, now)

    def _estimate(self, call: Call) -> int:
        per_character = max((one for one, _ in self._recent), default=TOKENS_PER_CHARACTER)
        return max(1, math.ceil(call.size * per_character) + max((one for _, one in self._recent), default=0))


# -- pauses of all calls: until the time that a refusal names, or while the provider is down

FAILURES, MOST_MORE = 3, 20
"""Failures in a row that mean an outage, and the most that calls in flight add to them, one each."""
FIRST_INTERVAL = 1.0
"""Seconds until the first probe in an outage, doubled with each further one."""
ALONE = 60.0
"""Seconds for which a refused call waits alone after the answer to a probe."""


class CircuitBreaker:
    """Closed, it lets calls through; open, it holds them back; half-open, it lets one through: the ``probe``.

    It opens for the time that a refusal names. If the probe is refused as well, the limit is one per window:
    the breaker stays open. If it is answered, the limit is a bucket's or refusals are random: the breaker
    closes, and for a minute a refused call waits alone. It also opens while the provider is ``down``. The
    first failure after the last answer was at ``since``, at the time of day ``began``, and ``tasks`` failed.
    """

    def __init__(self) -> None:
        self.probe: object = None
        self._probe_at = self._open_until = self._alone_until = -math.inf
        self.reset()

    def reset(self, now: float = 0.0, answered: object = None) -> None:
        """Note that the provider answers; a good answer to a probe ends the pause."""
        self.since, self.began = 0.0, ""
        self.tasks: set[Hashable] = set()
        self._failures = self._probes = 0
        if self.down:
            self._open_until = -math.inf
        elif answered is not None and answered is self.probe:
            self._open_until, self._alone_until = now, now + ALONE

    @property
    def down(self) -> bool:
        """True from an outage's beginning until the provider answers."""
        return self._open_until == math.inf

    def delay(self, now: float) -> float | None:
        """Seconds until a probe may be made, infinite if it is under way; None if the breaker is closed."""
        if now >= self._open_until:
            return None
        return min(self._probe_at if self.probe is None else math.inf, self._open_until) - now

    def sent(self, call: object, now: float) -> None:
        """Let a call through: a probe if the breaker is open, the only one of a pause."""
        if now < self._open_until:
            self.probe = call
            self._probe_at = -math.inf if self.down else math.inf

    def pause(self, sent: float, now: float, seconds: float, latency: float) -> bool:
        """Open for the ``seconds`` that a refusal names; False if the call is to wait alone.

        The probe is made halfway, or after the ``latency`` of an answer. The provider's time began after the
        call was ``sent``, and the probe's way to it takes as long: the time may be too short for one.
        """
        if now < self._alone_until or self.down:
            return False
        if now >= self._open_until:
            wait = min(latency, seconds / 2)
            self._probe_at = now + wait if wait < seconds - 2 * (now - sent) else math.inf
        self._open_until = max(self._open_until, now + seconds)
        return True

    def failed(self, now: float, *, in_flight: int, unreached: bool) -> bool:
        """Count a failure in a row; True if it shows that the provider is down.

        Failures of one task, which may break the server, do not, unless it was not even reached. Failures by
        chance, which come back before answers do, are fewer than the calls in flight.
        """
        self._failures += 1
        enough = self._failures >= FAILURES + min(in_flight, MOST_MORE)
        if self.down or not enough or (len(self.tasks) < 2 and not unreached):
            return False
        self._open_until, self.probe = math.inf, None
        self.plan_probe(now)
        return True

    def plan_probe(self, now: float) -> float:
        """Plan the next probe of an outage; returns the seconds until then."""
        self._probes += 1
        self._probe_at = now + (wait := backoff(self._probes, first=FIRST_INTERVAL))
        return wait
