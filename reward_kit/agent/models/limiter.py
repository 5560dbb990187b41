"""One limiter for each provider endpoint, through which all model calls of an evaluation go.

It decides when a call may be made: as many at once as the provider takes (``concurrency``), as ``--rpm`` and
``--tpm`` and the provider's headers allow (``rate_limits``), and one at a time while it is down (``outage``).
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
from reward_kit.agent.models.concurrency import START, Concurrency
from reward_kit.agent.models.endpoint import DEFAULT_BASE, PROVIDER
from reward_kit.agent.models.outage import Failures
from reward_kit.agent.models.rate_limits import RateLimits, quotas
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
REPEAT = 60.0
"""Seconds until a message of the same kind is given again."""

logger = logging.getLogger(__name__)
_random = random.SystemRandom()


class Limiter:
    """Lets calls to one provider through.

    ``name`` appears in messages. ``ceiling`` bounds the calls at once; ``rpm`` and ``tpm`` are requests and
    tokens per minute. A provider without a good answer for ``patience`` seconds is given up: every call then
    raises ``ProviderDownError``. ``tell`` gets messages for people. Calls that wait are served in order.
    Used in one event loop. ``in_flight`` and ``waiting`` count the calls that were let through, and those
    that were not yet; ``proven`` is True once a call has been answered.
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
        self._concurrency = Concurrency(ceiling)
        self._rates = RateLimits(rpm, tpm)
        self._patience = patience
        self._tell = tell
        self._announced: dict[str, float] = {}
        self._failures = Failures()
        self._head = asyncio.Lock()
        self._changed = asyncio.Event()
        self._deadlines: set[asyncio.Timeout] = set()
        self._patience_ends: asyncio.TimerHandle | None = None
        self._trial: Call | None = None
        self._closed_until = self._next_start = 0.0
        self._last_usage: Usage | None = None
        self._last_answer = -math.inf
        self._last_fault: ModelError | None = None
        self._given_up: ProviderDownError | None = None

    @property
    def room(self) -> int | None:
        """Calls that would be let through now; None while calls wait, or while none is let through."""
        if self.waiting or self._failures.down or self._now() < self._closed_until:
            return None
        return max(0, self._concurrency.at_once - self.in_flight)

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
                    with call.unclocked() if call is self._trial else nullcontext():
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
                until = self._now() + quota.seconds + (_jitter(quota.seconds) if quota.seconds else 0.0)
                self._closed_until = max(self._closed_until, until)

    # -- before a call

    async def _enter(self, call: Call) -> None:
        """Wait until the call may be made; those that wait are served in order."""
        wait = call.not_before - self._now()
        if wait <= 0 and not self._head.locked() and self._delay(call) <= 0:
            self._admit(call)
            return
        began = self._now()
        with call.unclocked():
            await asyncio.sleep(wait)
            self.waiting += 1
            try:
                async with self._head:
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
        if self._failures.down:
            wait = math.inf if self._trial is not None else self._failures.next_try - now
        elif self.in_flight >= self._concurrency.at_once:
            wait = math.inf
        else:
            wait = max(self._closed_until, self._next_start) - now
        return wait if wait > 0 else self._rates.delay(call, now)

    def _admit(self, call: Call) -> None:
        call.sent = now = self._now()
        self._failures.sent(call, self.in_flight)
        self.in_flight += 1
        self._next_start = max(now, self._next_start) + self._concurrency.spacing
        self._concurrency.sent(call)
        # before an answer, modules may have to be imported until the request is sent
        self._rates.take(call, now, sent=self.proven)
        if self._failures.down:
            self._trial = call

    # -- after a call

    def _leave(self, call: Call, answer: Completion | ModelError | None) -> bool:
        """Take in the end of an attempt, None if it was cancelled; True if the next one is no retry."""
        now = self._now()
        full = self.waiting > 0 or self.in_flight >= self._concurrency.at_once
        self.in_flight -= 1
        excused = False
        if isinstance(answer, ModelError):
            self._rates.settle(call, None, now, spent=answer.status is None)
            excused = self._failed(call, answer, now)
        else:
            usage = None if answer is None else answer.usage
            self._rates.settle(call, usage, now, spent=True)
            if answer is not None:
                self._is_back(now)
                self.proven, self._last_usage, self._last_answer = True, usage, now
                self._failures.answered(call)
                self._concurrency.answered(call, now, full=full)
        if call is self._trial:
            self._trial = None
        self._changed.set()
        return excused

    def _failed(self, call: Call, fault: ModelError, now: float) -> bool:
        refused = fault.status in REFUSED
        asked = fault.retry_after or 0.0
        if not fault.retryable or not (fault.status is None or refused or fault.status >= 500):
            if fault.status is not None:  # the provider has answered
                self._is_back(now)
            return False
        least = 4 if refused and not asked else 2
        streak = self._failures.failed(call, now, refused=refused, least=least)
        by_chance = not refused and self._failures.is_chance(streak.failures)
        excused = refused or asked > 0
        if streak.is_own and not self._failures.down and fault.no_answer != "connection":
            excused = excused and now - self._last_answer < NOTABLE
        else:
            self._slow_down(call, fault, now)
            if self._failures.down:
                return True
        call.not_before = now + backoff(streak.failures, first=FIRST_BACKOFF, asked=asked)
        return (excused or by_chance) and now - streak.began <= (self._patience if self.proven else TRUST)

    def _slow_down(self, call: Call, fault: ModelError, now: float) -> None:
        """Make fewer calls, none for as long as the provider says, and one at a time if it is down."""
        refused = fault.status in REFUSED
        asked = min(fault.retry_after or 0.0, self._patience)  # then it is tried again, or given up
        if refused and self._failures.down:
            self._is_back(now)
        since = self._failures.note(call, now)
        self._last_fault = fault
        if self._patience_ends is None:
            loop = asyncio.get_running_loop()
            self._patience_ends = loop.call_at(since + self._patience, self._give_up)
        if refused or asked or fault.status == 503 or fault.no_answer == "time":
            pause = self._concurrency.refused(call, now, named=asked > 0, doubtful=not refused)
            if asked:
                pause = asked + _jitter(asked)
            if asked >= NOTABLE:
                self._say("pause", f"is rate-limiting (HTTP {fault.status}); pausing for {_duration(asked)}")
            self._closed_until = max(self._closed_until, now + pause)
        reason = f"{self._failures.began} ({cut(fault.fault, 100)})"
        if refused:
            if now - since >= NOTABLE:
                self._say("down", f"has refused all calls since {reason}; waiting")
        elif call is self._trial:
            self._failures.plan_try(now)
            wait = _duration(self._failures.next_try - now)
            self._say("down", f"has not answered since {reason}; retrying in {wait}")
        elif not self._failures.down and self._failures.begins(fault, now, self.in_flight):
            self._concurrency.restart(now)

    def _is_back(self, now: float) -> None:
        if self._failures.since is None:
            return
        if self._announced.pop("down", None) is not None:
            self._tell(f"{self.name} answers again after {_duration(now - self._failures.since)}")
        self._failures.end()
        if self._patience_ends is not None:
            self._patience_ends.cancel()
            self._patience_ends = None

    def _say(self, kind: str, text: str) -> None:
        """Give a message, at most once a minute of each kind."""
        now = self._now()
        if now - self._announced.get(kind, -math.inf) >= REPEAT:
            self._announced[kind] = now
            self._tell(f"{self.name} {text}")

    def _give_up(self) -> None:
        """End all calls: the patience is over, also if they hang."""
        self._patience_ends = None
        if self.proven and self._failures.of_one and not self._failures.down:
            return  # its retries decide
        fault = self._last_fault
        assert fault is not None
        self._given_up = ProviderDownError(
            f"no good answer since {self._failures.began}, the last was: {fault.fault}",
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

    def room(self) -> int:
        """Rollouts that may begin now so that their calls do not pile up.

        0 while calls wait or a provider is down; otherwise as many as calls would be let through, or 8, since
        not every rollout is calling a model all the time.
        """
        rooms = [limiter.room for limiter in self._limiters.values()]
        if not rooms:
            return int(START)
        return 0 if None in rooms else max(8, sum(filter(None, rooms)))

    def _say(self, text: str) -> None:
        logger.info("%s", text)
        if self.tell is not None:
            self.tell(text)


def _jitter(seconds: float) -> float:
    """An addition to a time that a provider names, so that several processes do not come back together."""
    return 0.01 + _random.uniform(0.0, min(1.0, 0.1 * seconds))


def _duration(seconds: float) -> str:
    return f"{max(0.0, seconds):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
