"""One limiter for each provider endpoint, through which all model calls of an evaluation go.

It decides when a call may be made: as many at once as it takes (``aimd``), as ``--rpm``, ``--tpm`` and
headers allow (``rate_limits``), and only a probe while it is down or asks to wait (``circuit_breaker``).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.network import backoff
from reward_kit.agent.base.redaction import public_address
from reward_kit.agent.base.text import cut
from reward_kit.agent.models.aimd import AIMD, START
from reward_kit.agent.models.circuit_breaker import CircuitBreaker
from reward_kit.agent.models.endpoint import DEFAULT_BASE, PROVIDER
from reward_kit.agent.models.rate_limits import MINUTE, RateLimits, quotas
from reward_kit.errors import ModelError, ProviderDownError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reward_kit.agent.base.types import Completion, Usage
    from reward_kit.agent.models.calls import Attempt, Call

REFUSED = frozenset({429, 529})
"""HTTP statuses of a refusal: too many calls."""
TRUST = 65.0
"""Seconds for which a provider that has not answered yet may refuse: most limits are per minute."""
NOTABLE = 10.0
"""Seconds; longer pauses are announced. A conversation at fault waits if another was answered within them."""
FIRST_BACKOFF = 0.05
"""Seconds until a refused call comes back, doubled with each further refusal."""
FREE = 2
"""Failures of a call that are no retries if other calls are answered meanwhile."""

logger = logging.getLogger(__name__)
_random = random.SystemRandom()


class Limiter:
    """Lets calls to one provider through.

    ``name`` appears in messages. ``ceiling`` bounds the calls at once; ``rpm`` and ``tpm`` are requests and
    tokens per minute. A provider without a good answer for ``patience`` seconds is given up: every call then
    raises ``ProviderDownError``. ``tell`` gets messages for people. Calls that wait are served in order.
    Used in one event loop. ``in_flight`` and ``waiting`` count the calls that were let through, and those
    that were not yet and stand in the ``queue``; ``proven`` is True once a call has been answered.
    """

    def __init__(
        self,
        name: str,
        *,
        ceiling: int,
        rpm: float | None = None,
        tpm: float | None = None,
        patience: float = 900.0,
        tell: Callable[[str], None] = logger.info,
    ) -> None:
        self.name = name
        self.in_flight = self.waiting = 0
        self.proven = False
        self.queue = asyncio.Lock()
        self._aimd = AIMD(ceiling)
        self._rates = RateLimits(rpm, tpm)
        self._patience = patience
        self._tell = tell
        self._announced: dict[str, float] = {}
        self._breaker = CircuitBreaker()
        self._changed = asyncio.Event()
        self._deadlines: set[asyncio.Timeout] = set()
        self._patience_ends: asyncio.TimerHandle | None = None
        self._closed_until = self._next_start = 0.0
        self._last_usage: Usage | None = None
        self._last_answer = -math.inf
        self._last_fault: ModelError | None = None
        self._given_up: ProviderDownError | None = None

    @property
    def room(self) -> int:
        """Further calls that may be in flight."""
        return max(0, self._aimd.at_once - self.in_flight)

    async def attempt(self, call: Call, make: Attempt) -> tuple[Completion | ModelError, bool]:
        """Make an attempt once the call may be made; True if the next attempt is no retry.

        That is so if it failed for a limit or an outage. Raises ``ProviderDownError`` once the provider is
        given up, in the middle of an attempt as well.
        """
        if self._given_up is not None:
            raise self._given_up
        deadline = asyncio.timeout(None)
        self._deadlines.add(deadline)
        try:
            async with deadline:
                await self._enter(call)
                answer = None
                try:
                    trial = self._breaker.down and call is self._breaker.probe
                    with call.unclocked() if trial else nullcontext():
                        answer = await make()
                finally:
                    excused = self._leave(call, answer)
                return answer, excused
        except TimeoutError:  # an attempt returns its own
            assert self._given_up is not None
            raise self._given_up from None
        finally:
            self._deadlines.discard(deadline)

    def read_headers(self, headers: Mapping[str, Any]) -> None:
        """Follow an answer's rate-limit headers."""
        for quota in quotas(headers):
            # other calls in flight are requests that the provider may not have counted
            if not quota.suffices(self._last_usage, self.in_flight - 1):
                until = self._now() + quota.seconds + _jitter(quota.seconds)
                self._closed_until = max(self._closed_until, until)

    # -- before a call

    async def _enter(self, call: Call) -> None:
        """Wait until the call may be made; those that wait are served in order."""
        wait = call.not_before - self._now()
        if wait <= 0 and not self.queue.locked() and self._delay(call) <= 0:
            self._admit(call)
            return
        began = self._now()
        with call.unclocked():
            await asyncio.sleep(wait)
            self.waiting += 1
            try:
                async with self.queue:
                    while (wait := self._delay(call)) > 0:
                        self._changed.clear()
                        with suppress(TimeoutError):
                            async with asyncio.timeout(wait if wait < math.inf else None):
                                await self._changed.wait()
                    self._admit(call)
            finally:
                self.waiting -= 1
        call.waited += self._now() - began

    def _delay(self, call: Call) -> float:
        """Seconds until the call may be made; infinite if another has to end first."""
        now = self._now()
        wait = self._breaker.delay(now)
        if not self._breaker.down:
            wait = max(wait, self._closed_until - now, self._next_start - now)
            if self.in_flight >= self._aimd.at_once and not self._breaker.is_open(now):
                wait = math.inf
        return wait if wait > 0 else self._rates.delay(call, now)

    def _admit(self, call: Call) -> None:
        call.sent = now = self._now()
        self._breaker.sent(call, now, self.in_flight)
        self.in_flight += 1
        self._next_start = max(now, self._next_start) + self._aimd.spacing
        self._aimd.sent(call)
        # before an answer, modules may have to be imported until the request is sent
        self._rates.take(call, now, sent=self.proven)

    # -- after a call

    def _leave(self, call: Call, answer: Completion | ModelError | None) -> bool:
        """Take in the end of an attempt, None if it was cancelled; True if the next one is no retry."""
        now = self._now()
        full = self.waiting > 0 or self.in_flight >= self._aimd.at_once
        self.in_flight -= 1
        excused = False
        if isinstance(answer, ModelError):
            self._rates.settle(call, None, now, spent=answer.status is None)
            excused = self._failed(call, answer, now)
        else:
            usage = None if answer is None else answer.usage
            self._rates.settle(call, usage, now, spent=True)
            if answer is not None:
                self.proven, self._last_usage, self._last_answer = True, usage, now
                if self._breaker.answered(call, now):
                    self._aimd.restart(now, self._aimd.limit)
                self._aimd.answered(call, now, full=full)
                self._is_back(now)
        if call is self._breaker.probe:
            self._breaker.probe = None
        self._changed.set()
        return excused

    def _failed(self, call: Call, fault: ModelError, now: float) -> bool:
        refused = fault.status in REFUSED
        if not fault.retryable or not (fault.status is None or refused or fault.status >= 500):
            if fault.status is not None:  # the provider has answered
                self._is_back(now)
            return False
        named = fault.retry_after or 0.0
        asked = named and min(self._patience, named + _jitter(named))
        own = self._breaker.failed(call, now, least=4 if refused and not named else 2)
        own = own and not self._breaker.down and fault.no_answer != "connection"
        if not own:
            self._slow_down(call, fault, now, asked)
            if self._breaker.down:
                return True
        call.not_before = now + backoff(call.failures, first=FIRST_BACKOFF, asked=asked)
        answers = now - self._last_answer < NOTABLE
        excused = answers or not own if refused or named else answers and call.failures <= FREE
        return excused and now - call.failing_since <= (self._patience if self.proven else TRUST)

    def _slow_down(self, call: Call, fault: ModelError, now: float, asked: float) -> None:
        """Make fewer calls, none for as long as the provider asks, and one at a time if it is down."""
        breaker, refused, named = self._breaker, fault.status in REFUSED, fault.retry_after or 0.0
        if refused and breaker.down:
            self._is_back(now)
        since = breaker.note(call, now)
        self._last_fault = fault
        if self._patience_ends is None:
            loop = asyncio.get_running_loop()
            self._patience_ends = loop.call_at(since + self._patience, self._give_up)
        if asked and not breaker.down:
            breaker.open_for(call, now, named=named, pause=asked, latency=self._aimd.latency)
            if asked >= NOTABLE and breaker.is_open(now):
                self._say("pause", f"is rate-limiting (HTTP {fault.status}); pausing for {_duration(asked)}")
        doubtful = asked or fault.status == 503 or fault.no_answer == "time"
        if (refused or doubtful) and call is not breaker.probe:
            window = breaker.window if asked else None
            pause = self._aimd.refused(call, now, window=window, doubtful=not refused)
            self._closed_until = max(self._closed_until, now + pause)
        reason = f"{breaker.began} ({cut(fault.fault, 100)})"
        if refused:
            if now - since >= NOTABLE:
                self._say("down", f"has refused all calls since {reason}; waiting")
        elif breaker.down and call is breaker.probe:
            breaker.plan_probe(now)
            wait = _duration(breaker.probe_at - now)
            self._say("down", f"has not answered since {reason}; retrying in {wait}")
        elif not breaker.down and breaker.outage_begins(fault, now, self.in_flight):
            self._aimd.restart(now)

    def _is_back(self, now: float) -> None:
        if self._breaker.since is None:
            return
        if self._announced.pop("down", None) is not None:
            self._tell(f"{self.name} answers again after {_duration(now - self._breaker.since)}")
        self._breaker.end_outage()
        if self._patience_ends is not None:
            self._patience_ends.cancel()
            self._patience_ends = None

    def _say(self, kind: str, text: str) -> None:
        """Give a message, at most once a minute of each kind."""
        now = self._now()
        if now - self._announced.get(kind, -math.inf) >= MINUTE:
            self._announced[kind] = now
            self._tell(f"{self.name} {text}")

    def _give_up(self) -> None:
        """End all calls: the patience is over, also if they hang."""
        self._patience_ends = None
        if self.proven and self._breaker.of_one and not self._breaker.down:
            return  # its retries decide
        fault = self._last_fault
        assert fault is not None
        self._given_up = ProviderDownError(
            f"no good answer since {self._breaker.began}, the last was: {fault.fault}",
            place=self.name,
            remedy="Resume when it answers again; --patience sets how long to wait.",
            status=fault.status,
        )
        self._given_up.__cause__ = fault
        for deadline in self._deadlines:
            deadline.reschedule(self._now())

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


@dataclass(slots=True)
class Limiters:
    """The limiters of one evaluation, by provider and address: agent and user share one at the same place.

    ``ceiling``, ``rpm``, ``tpm`` and ``patience`` are those of each limiter. ``tell`` gets messages for
    people. ``used`` is True once a model's calls go through them.
    """

    ceiling: int = 10
    rpm: float | None = None
    tpm: float | None = None
    patience: float = 900.0
    tell: Callable[[str], None] | None = None
    used: bool = False
    _limiters: dict[tuple[str, str], Limiter] = field(default_factory=dict)

    def of(self, provider: str, address: str | None) -> Limiter:
        """The limiter of a provider; without an ``address`` at its usual one."""
        place = (address or (DEFAULT_BASE if provider == PROVIDER else "")).rstrip("/")
        limiter = self._limiters.get((provider, place))
        if limiter is None:
            name = f"{provider} at {public_address(place)}" if place else provider
            options: Any = {"ceiling": self.ceiling, "rpm": self.rpm, "tpm": self.tpm}
            limiter = Limiter(name, patience=self.patience, tell=self._say, **options)
            self._limiters[provider, place] = limiter
        return limiter

    async def room(self) -> int:
        """Wait until no call waits; returns how many rollouts may begin so that their calls do not pile up.

        As many as calls may be in flight, or 8, since not every rollout is calling a model all the time.
        """
        while busy := next((one for one in self._limiters.values() if one.waiting), None):
            async with busy.queue:  # until the calls that wait now are let through
                pass
        if not self._limiters:
            return int(START)
        return max(8, sum(limiter.room for limiter in self._limiters.values()))

    def _say(self, text: str) -> None:
        logger.info("%s", text)
        if self.tell is not None:
            self.tell(text)


def _jitter(seconds: float) -> float:
    """An addition to a time that a provider names, so that several processes do not come back together."""
    return 0.01 + _random.uniform(0.0, min(1.0, 0.1 * seconds))


def _duration(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
