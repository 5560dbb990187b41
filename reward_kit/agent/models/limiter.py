"""The limiter of a provider, through which all calls to it go, and the loop that repeats a call.

It makes as many calls at once as the provider takes (``AIMD``), as ``--rpm`` and ``--tpm`` allow
(``RateLimits``), and only a probe while the provider is down or asks to wait (``CircuitBreaker``).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from contextlib import nullcontext, suppress
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.network import LONGEST_WAIT, quotas
from reward_kit.agent.base.network import backoff as seconds_until_next
from reward_kit.agent.base.text import cut
from reward_kit.agent.models.errors import cannot_be_read, first_fault
from reward_kit.agent.models.limits import AIMD, MINUTE, CircuitBreaker, RateLimits
from reward_kit.errors import ModelError, ProviderDownError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from reward_kit.agent.base.types import Completion, Usage
    from reward_kit.agent.models.calls import Call

    Attempt = Callable[[], Awaitable[Completion | ModelError]]

REFUSED = frozenset({429, 529})
"""HTTP statuses of a refusal: too many calls."""
TRUST, NOTABLE = 65.0, 10.0
"""Seconds for which a provider that has not answered yet may refuse: most limits are per minute; those from
which a pause is announced, and within which another answer lets a conversation at fault wait."""
FIRST_BACKOFF, RESTART = 0.05, 2
"""Seconds until a failed call comes back, doubled with each further failure; calls at once after outages."""
FREE, OTHERS = 2, 8
"""Failures of a call that are no retries while others are answered; answers to others, for each failure of
others, after which a call that fails again is at fault itself."""

logger = logging.getLogger(__name__)
_random = random.SystemRandom()


async def ask(
    attempt: Attempt, call: Call, *, retries: int, backoff: float, limiter: Limiter | None = None
) -> Completion:
    """The answer of the first successful attempt, with the seconds of all; raises ``ModelError``.

    An attempt returns its error, since this loop decides if it is raised: one that may pass is, after
    ``retries`` further attempts. With a limiter, the next attempt after a limit or an outage is no retry
    (unless ``retries`` is 0), and a lasting error before the first answer is a ``ModelSetupError``.
    """
    made, began = 0, _now()
    while True:
        answer, excused = await limiter.attempt(call, attempt) if limiter else (await attempt(), False)
        if not isinstance(answer, ModelError):
            answer.waited = call.waited
            answer.seconds = _now() - began - call.waited
            return answer
        is_first = limiter is not None and not limiter.proven
        lasts = not answer.retryable and not (is_first and cannot_be_read(answer))
        if lasts or (made >= retries and not (excused and retries)):
            raise first_fault(answer) if is_first else answer
        if not excused:
            made += 1
            asked = (answer.retry_after or 0.0) if limiter is None else 0.0
            await asyncio.sleep(seconds_until_next(made, first=backoff, jitter=1.0, asked=asked))


@dataclass(eq=False, repr=False)
class Limiter:
    """Lets calls to one provider through; those that wait are served in order. Used in one event loop.

    ``name`` appears in messages. ``ceiling`` bounds the calls at once; ``rpm`` and ``tpm`` are requests and
    tokens per minute. A provider without a good answer for ``patience`` seconds is given up: every call then
    raises ``ProviderDownError``. ``tell`` gets messages for people. ``in_flight`` and ``waiting`` count the
    calls that were let through and those in the ``queue``; ``proven`` is True once one has been answered.
    """

    name: str
    _: KW_ONLY
    ceiling: int
    rpm: float | None = None
    tpm: float | None = None
    patience: float = 900.0
    tell: Callable[[str], None] = logger.info

    def __post_init__(self) -> None:
        self.in_flight = self.waiting = self._score = 0
        self.proven = False
        self.queue, self._changed = asyncio.Lock(), asyncio.Event()
        self._aimd, self._breaker = AIMD(self.ceiling), CircuitBreaker()
        self._rates = RateLimits(self.rpm, self.tpm) if self.rpm or self.tpm else None
        self._next_start, self._last_answer, self._last_full = 0.0, -math.inf, -math.inf
        self._last_usage: Usage | None = None
        self._announced: dict[str, float] = {}
        self._deadlines: set[asyncio.Timeout] = set()
        self._patience_ends: asyncio.TimerHandle | None = None
        self._given_up: ProviderDownError | None = None

    @property
    def room(self) -> int:
        """Further calls that may be in flight."""
        return max(0, self._aimd.at_once - self.in_flight)

    async def attempt(self, call: Call, make: Attempt) -> tuple[Completion | ModelError, bool]:
        """Make an attempt once the call may be made; True if the next attempt is no retry.

        Raises ``ProviderDownError`` once the provider is given up, in the middle of an attempt as well.
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
                    with call.unclocked() if self._breaker.down else nullcontext():
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
                self._next_start = max(self._next_start, _now() + _with_jitter(quota.seconds))

    async def _enter(self, call: Call) -> None:
        """Wait until the call may be made, and count it."""
        began = _now()
        if call.not_before > began or self.queue.locked() or self._delay(call) > 0:
            with call.unclocked():
                await asyncio.sleep(call.not_before - began)
                self.waiting += 1
                try:
                    async with self.queue:
                        while (wait := self._delay(call)) > 0:
                            self._changed.clear()
                            with suppress(TimeoutError):
                                async with asyncio.timeout(wait if wait < math.inf else None):
                                    await self._changed.wait()
                finally:
                    self.waiting -= 1
            call.waited += _now() - began
        call.sent = now = _now()
        if not call.failures:  # answers to those in flight say nothing about it
            call.score_before = self._score + self.in_flight
        self.in_flight += 1
        if not self.room:
            self._last_full = now
        self._breaker.sent(call, now)
        self._next_start = max(now, self._next_start) + self._aimd.sent()
        if self._rates is not None:  # before an answer, the request may wait for the import of modules
            self._rates.take(call, now, sent=self.proven)

    def _delay(self, call: Call) -> float:
        """Seconds until the call may be made; infinite if another has to end first."""
        now = _now()
        wait = self._breaker.delay(now)
        if wait is None:
            wait = math.inf if self.in_flight >= self._aimd.at_once else self._next_start - now
        return wait if wait > 0 or self._rates is None else self._rates.delay(call, now)

    def _leave(self, call: Call, answer: Completion | ModelError | None) -> bool:
        """Take in the end of an attempt, None if it was cancelled; True if the next one is no retry."""
        now, excused = _now(), False
        full = self.waiting > 0 or self._last_full >= call.sent
        self.in_flight -= 1
        if self._rates is not None:
            usage, status = getattr(answer, "usage", None), getattr(answer, "status", None)
            self._rates.settle(call, usage, now, spent=status is None)
        if isinstance(answer, ModelError):
            excused = self._failed(call, answer, now)
        elif answer is not None:
            self.proven, self._last_usage, self._last_answer = True, answer.usage, now
            self._score += 1
            self._aimd.answered(call.sent, now, full=full)
            self._is_back(now, call)
        if call is self._breaker.probe:
            self._breaker.probe = None
        self._changed.set()
        return excused

    def _failed(self, call: Call, fault: ModelError, now: float) -> bool:
        """Slow down unless the fault is the call's own; True if the next attempt is no retry."""
        refused = fault.status in REFUSED
        if not fault.retryable or not (fault.status is None or refused or fault.status >= 500):
            if fault.status is not None:  # the provider has answered
                self._is_back(now)
            call.not_before = now + min(LONGEST_WAIT, fault.retry_after or 0.0)
            return False
        asked = min(self.patience, _with_jitter(fault.retry_after)) if fault.retry_after else 0.0
        call.failures += 1
        call.failing_since = call.failing_since or now
        own = call.failures > 1 and self._score - call.score_before >= OTHERS
        if self._breaker.down or not own or fault.no_answer == "connection":
            own = False
            self._score -= OTHERS
            call.score_before -= OTHERS  # its own failure says nothing about the others
            self._slow_down(call, fault, now, asked)
            if self._breaker.down:
                return True
        call.not_before = now + seconds_until_next(call.failures, first=FIRST_BACKOFF, asked=asked)
        others = now - self._last_answer < NOTABLE
        excused = others or not own if refused or asked else others and call.failures <= FREE
        return excused and now - call.failing_since <= (self.patience if self.proven else TRUST)

    def _slow_down(self, call: Call, fault: ModelError, now: float, asked: float) -> None:
        """Make fewer calls, none for as long as the provider asks, and one at a time if it is down."""
        breaker, refused = self._breaker, fault.status in REFUSED
        if refused and breaker.down:
            self._is_back(now)
        if not breaker.tasks:
            breaker.since, breaker.began = now, time.strftime("%H:%M")
            loop = asyncio.get_running_loop()
            self._patience_ends = loop.call_at(now + self.patience, self._give_up)
        breaker.tasks.add(call.caller.task)
        self._last_fault = fault
        if asked and breaker.pause(call.sent, now, asked, self._aimd.latency) and asked >= NOTABLE:
            self._say("pause", f"is rate-limiting (HTTP {fault.status}); pausing for {_duration(asked)}")
        is_probe, reason = call is breaker.probe, f"{breaker.began} ({cut(fault.fault, 100)})"
        if (refused or asked or fault.status == 503) and not is_probe:
            pause = self._aimd.refused(call.sent, now, named=asked > 0)
            self._next_start = max(self._next_start, now + pause)
        if refused:
            if now - breaker.since >= NOTABLE:
                self._say("down", f"has refused all calls since {reason}; waiting")
        elif breaker.down and is_probe:
            wait = _duration(breaker.plan_probe(now))
            self._say("down", f"has not answered since {reason}; retrying in {wait}")
        elif breaker.failed(now, in_flight=self.in_flight, unreached=fault.no_answer == "connection"):
            self._aimd = AIMD(self.ceiling, start=RESTART)

    def _is_back(self, now: float, answered: Call | None = None) -> None:
        """End an outage: the provider answers."""
        if self._announced.pop("down", None) is not None:
            self.tell(f"{self.name} answers again after {_duration(now - self._breaker.since)}")
        self._breaker.reset(now, answered)
        if self._patience_ends is not None:
            self._patience_ends.cancel()

    def _say(self, kind: str, text: str) -> None:
        """Give a message, at most once a minute of each kind."""
        if _now() - self._announced.get(kind, -math.inf) >= MINUTE:
            self._announced[kind] = _now()
            self.tell(f"{self.name} {text}")

    def _give_up(self) -> None:
        """End all calls: the patience is over, also if they hang."""
        if self.proven and len(self._breaker.tasks) < 2 and not self._breaker.down:
            self._patience_ends = asyncio.get_running_loop().call_later(self.patience, self._give_up)
            return  # its retries decide, unless others fail as well
        fault = self._last_fault
        self._given_up = ProviderDownError(
            f"no good answer since {self._breaker.began}, the last was: {fault.fault}",
            place=self.name,
            remedy="Resume when it answers again; --patience sets how long to wait.",
            status=fault.status,
        )
        self._given_up.__cause__ = fault
        for deadline in self._deadlines:
            deadline.reschedule(_now())


def _now() -> float:
    return asyncio.get_running_loop().time()


def _with_jitter(seconds: float) -> float:
    """A time that a provider names, and a little more: several processes do not come back together."""
    return seconds + 0.01 + _random.uniform(0.0, min(1.0, 0.1 * seconds))


def _duration(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
