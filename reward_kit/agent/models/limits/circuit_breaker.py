"""Pauses of all calls: until the time that a refusal names, or while the provider is down."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from reward_kit.agent.base.network import backoff

if TYPE_CHECKING:
    from collections.abc import Hashable

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

    def reset(self) -> None:
        """Note that the provider answers."""
        self.since, self.began = 0.0, ""
        self.tasks: set[Hashable] = set()
        self._failures = self._probes = 0
        if self.down:
            self._open_until = -math.inf

    @property
    def down(self) -> bool:
        """True from an outage's beginning until the provider answers."""
        return self._open_until == math.inf

    def note(self, task: Hashable, now: float) -> bool:
        """Note a failure of a ``task``; True if it is the first one since the last answer."""
        is_first = not self.tasks
        self.tasks.add(task)
        if is_first:
            self.since, self.began = now, time.strftime("%H:%M")
        return is_first

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

    def answered(self, call: object, now: float) -> None:
        """Note a good answer: to a probe, it ends the pause."""
        if call is self.probe and not self.down:
            self._open_until, self._alone_until = now, now + ALONE

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
