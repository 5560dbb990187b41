"""Pauses of all calls: until the time that a refusal names, or while the provider is down."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from reward_kit.agent.base.network import backoff

if TYPE_CHECKING:
    from collections.abc import Hashable

    from reward_kit.agent.models.calls import Call
    from reward_kit.errors import ModelError

FAILURES, MOST_MORE = 3, 20
"""Failures in a row that mean an outage, and the most that calls in flight add to them, one each."""
FIRST_INTERVAL = 1.0
"""Seconds until the first probe in an outage, doubled with each further one."""
BELIEVED = 60.0
"""Seconds for which the answer to a probe of a named pause is believed; a refusal at first for less."""
UNLIKELY = 1 / 64
"""Probability, judged by the other calls, below which the failures of a call are its own fault."""


class CircuitBreaker:
    """Closed, it lets calls through; open, it holds them back; half-open, it lets one through: the probe.

    It opens for the time that a refusal names. If the probe is refused as well, the limit is one per
    ``window``, and the breaker stays open. If it is answered, the limit is a bucket's or refusals are random:
    the breaker closes, and while this is believed, a refused call waits alone. ``window`` is None at first.

    It also opens when the provider is ``down``, until it answers. ``since`` is the time of the first failure
    after the last answer, ``began`` its time of day, ``probe_at`` the time of the next probe; with ``of_one``
    only calls of one task have failed since then.
    """

    def __init__(self) -> None:
        self.probe: Call | None = None
        self.window: bool | None = None
        self.probe_at = 0.0
        self._until = self._latest_probe = self._believed_until = 0.0
        self._doublings = self._answers = self._faults = 0
        self.end_outage()

    def end_outage(self) -> None:
        """Note that the provider answers."""
        self.since: float | None = None
        self.began = ""
        self.down, self.of_one = False, True
        self._in_a_row = self._probes = 0
        self._tasks: set[Hashable] = set()

    def is_open(self, now: float) -> bool:
        """True while calls other than a probe wait."""
        return self.down or now < self._until

    def delay(self, now: float) -> float:
        """Seconds until a call may be made; infinite if the probe has to end first."""
        if self.down:
            return math.inf if self.probe is not None else self.probe_at - now
        if self.probe is None and now < min(self._until, self._latest_probe):
            return self.probe_at - now
        return self._until - now

    def sent(self, call: Call, now: float, in_flight: int) -> None:
        """Note that a call is sent: answers to those in flight say nothing about it."""
        if not call.failures:
            call.answers_before, call.faults_before = self._answers + in_flight, self._faults
        if self.is_open(now):
            self.probe = call

    def answered(self, call: Call, now: float) -> bool:
        """Count a good answer; True if the call was a probe, and the breaker is closed again."""
        self._answers += 1
        if call is not self.probe or self.down:
            return False
        self._until, self.window = now, False
        self._believed_until, self._doublings = now + BELIEVED, 0
        return True

    def failed(self, call: Call, now: float, *, least: int) -> bool:
        """Count a failure; True if it is the call's own fault, which takes ``least`` in a row.

        A call with more tokens than the limit, or that breaks the server, fails while others are answered.
        """
        call.failures += 1
        if call.failures == 1:
            call.failing_since = now
        others = self._faults - call.faults_before
        share = (others + 1) / (others + max(0, self._answers - call.answers_before) + 1)
        if call.failures >= least and share**call.failures <= UNLIKELY:
            return True
        self._faults += 1
        call.faults_before += 1  # its own failure says nothing about the others
        return False

    def open_for(self, call: Call, now: float, *, named: float, pause: float, latency: float) -> None:
        """Open after a refusal that ``named`` a time, for a ``pause`` that is a little longer.

        Unless the last probe was answered. ``latency`` is the time of an answer.
        """
        if call is self.probe:
            self._latest_probe, self.window = 0.0, True
            self._believed_until = now + min(BELIEVED, named * (2**self._doublings - 1))
            self._doublings += 1
        elif now >= self._until:
            self._latest_probe = 0.0
            if now >= self._believed_until:
                self.probe_at = now + min(latency, named / 2)
                # the provider's time began after the call was sent; the probe's way to it takes as long
                self._latest_probe = now + named - 2 * (now - call.sent)
                if self.window is None and self._latest_probe <= self.probe_at:
                    self.window = False  # too short to tell
            elif not self.window:
                return
        self._until = max(self._until, now + pause)

    def note(self, call: Call, now: float) -> float:
        """Note a failure that may be the first of an outage; returns the time of that one."""
        self._tasks.add(call.caller.task)
        self.of_one = len(self._tasks) == 1
        if self.since is None:
            self.since, self.began = now, time.strftime("%H:%M")
        return self.since

    def outage_begins(self, fault: ModelError, now: float, in_flight: int) -> bool:
        """Count a failure in a row; True if the provider is down from now on.

        Failures of one task, which may break the server, do not suffice, unless it was not even reached.
        Failures by chance, which come back before answers do, are fewer than the calls in flight.
        """
        self._in_a_row += 1
        least = FAILURES + min(in_flight, MOST_MORE)
        if self._in_a_row < least or (self.of_one and fault.no_answer != "connection"):
            return False
        self.down, self.probe = True, None
        self.plan_probe(now)
        return True

    def plan_probe(self, now: float) -> None:
        """Plan the next probe of an outage."""
        self._probes += 1
        self.probe_at = now + backoff(self._probes, first=FIRST_INTERVAL)
