"""One limiter for each provider endpoint, through which all model calls of an evaluation go.

It decides when a call may be made: as many at once as the provider takes (``concurrency``), never more than
``--rpm`` and ``--tpm`` (``rate_limits``), not before the time that the provider names (``headers``), and one
at a time while it is down (``outage``). ``attempts.ask`` drives it:

    await limiter.enter(call)
    ...                                  # one attempt
    limiter.answered(call, completion)   # or failed(call, error), or cancelled(call)
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from reward_kit.agent.models.caller import Caller
from reward_kit.agent.models.concurrency import START, Concurrency
from reward_kit.agent.models.headers import LONGEST_QUOTA, TrustedQuotas
from reward_kit.agent.models.outage import Blame, Misses, Notices, Outage
from reward_kit.agent.models.rate_limits import RateLimits
from reward_kit.errors import ModelError, ProviderDownError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from reward_kit.agent.base.types import Completion, Usage
    from reward_kit.agent.models.rate_limits import Reservation

REFUSED = frozenset({429, 529})
"""HTTP statuses of a refusal: too many calls."""
DOUBT = 3.0
"""Factor of the share of failures that is tolerated before they count as signs of too many calls."""
TRUST = 65.0
"""Seconds for which a provider that has not answered yet may refuse: most limits are per minute."""
NOTABLE_PAUSE = 10.0
"""Seconds; a pause from here on is told."""
RECENTLY = 10.0
"""Seconds since the last good answer to any call for which a conversation at fault may wait."""
LONGEST_DELAY = 60.0
"""Seconds; a conversation at fault is tried again after this, also where the provider names more."""
FIRST_BACKOFF, LONGEST_BACKOFF = 0.05, 10.0
"""Seconds until a refused call comes back, doubled with each further refusal."""
ROUNDING = 0.01
"""Seconds by which a time that a provider names may be off."""
AT_LEAST = 8
"""Rollouts that are begun together while no call waits."""
DEFAULT_ADDRESSES = {"openai": "https://api.openai.com/v1"}
"""Usual addresses of providers, so that naming one makes no second limiter."""

logger = logging.getLogger(__name__)
_random = random.SystemRandom()


class Call:
    """A model call with all its attempts.

    ``size`` is the number of characters of its request, ``waited`` the seconds for which the limiter held it
    back, ``not_before`` the earliest time of its next attempt.
    """

    __slots__ = (
        "answers_before",
        "attempt",
        "caller",
        "generation",
        "not_before",
        "reservation",
        "sent",
        "size",
        "ticket",
        "waited",
    )

    def __init__(self, size: int = 0, caller: Caller | None = None) -> None:
        self.size = size
        self.caller = caller or Caller()
        self.ticket = -1
        self.generation = self.answers_before = 0
        self.sent = self.waited = self.not_before = 0.0
        self.reservation: Reservation | None = None
        self.attempt: asyncio.Future[Completion | ModelError] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Count the time in this block as waiting; the rollout's clock stands still."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            with self.caller.held():
                yield
        finally:
            self.waited += loop.time() - began


class Limiter:
    """Lets calls to one provider through.

    ``name`` appears in messages. ``ceiling`` bounds the calls at once; ``rpm`` and ``tpm`` are requests and
    tokens per minute. A provider without a good answer for ``patience`` seconds is given up: every call then
    raises ``ProviderDownError``. ``tell`` gets messages for people. Calls that wait are served in order.
    Used in one event loop.
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
        self._calls: set[Call] = set()
        self._concurrency = Concurrency(ceiling)
        self._rates = RateLimits(rpm, tpm) if rpm or tpm else None
        self._patience = patience
        self._notices = Notices(name, tell)
        self._quotas = TrustedQuotas()
        self._outage = Outage()
        self._misses = Misses()
        self._blame = Blame()
        self._tickets = itertools.count()
        self._queue: list[tuple[int, asyncio.Future[None], Call]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._end: asyncio.TimerHandle | None = None
        self._trying: Call | None = None
        self._closed_until = self._next_start = self._quota_until = 0.0
        self._quota_left = math.inf
        self._last_usage: Usage | None = None
        self._last_answer = -math.inf
        self._last_fault: ModelError | None = None
        self._over: ProviderDownError | None = None

    @property
    def in_flight(self) -> int:
        """Calls that were let through and have not ended."""
        return len(self._calls)

    @property
    def waiting(self) -> int:
        """Calls that wait to be let through."""
        return len(self._queue)

    @property
    def room(self) -> int:
        """Calls that would be let through now."""
        return max(0, self._concurrency.at_once - self.in_flight)

    @property
    def closed(self) -> bool:
        """True while no call is let through: the provider is down, or wants a pause."""
        return self._outage.down or self._now() < self._closed_until

    @property
    def proven(self) -> bool:
        """True once a call has been answered."""
        return self._last_usage is not None

    @property
    def wants_size(self) -> bool:
        """True if the length of requests matters."""
        return self._rates is not None and self._rates.wants_size

    def is_trying(self, call: Call) -> bool:
        """True if this call is to find out if the provider answers again."""
        return call is self._trying

    async def enter(self, call: Call) -> None:
        """Wait until the call may be made; raises ``ProviderDownError`` if the provider was given up."""
        if call.ticket < 0:
            call.ticket = next(self._tickets)
        delay = call.not_before - self._now()
        if delay > 0:
            with call.held():
                await asyncio.sleep(delay)
        if self._over is not None:
            raise self._over
        if not self._queue and self._delay(call, self._now()) <= 0:
            self._admit(call)
        else:
            with call.held():
                await self._queued(call)

    def answered(self, call: Call, completion: Completion) -> None:
        """Take in that the call has a good answer."""
        now = self._now()
        full = self.in_flight >= self._concurrency.at_once or bool(self._queue)
        stale = call.sent <= self._misses.last_series  # an outage may have begun since
        self._count_out(call, completion.usage)
        if self._outage.since is not None:
            self._is_back(now)
        self._last_usage, self._last_answer = completion.usage, now
        self._quotas.answered(call.sent, now)
        self._misses.answered()
        self._blame.answered(call)
        self._concurrency.answered(call, now, full=full and not stale)
        self._pump()

    def cancelled(self, call: Call) -> None:
        """Take in that the call was cancelled."""
        self._count_out(call, None)
        self._pump()

    def failed(self, call: Call, fault: ModelError) -> bool:
        """Take in that the call failed; True if the next attempt is no retry.

        That is so if the call failed for a limit, an outage, or by a chance that meets all calls.
        """
        now = self._now()
        tried = call is self._trying
        self._count_out(call, None, spent=fault.status is None)
        refused = fault.retryable and fault.status in REFUSED
        missed = fault.retryable and not refused and (fault.status is None or fault.status >= 500)
        excused = False
        if refused or missed:
            least = 4 if refused and not fault.retry_after else 2
            own = fault.no_answer != "connection" and self._blame.failed(call, now, least=least)
            if missed:
                self._misses.missed(now)
            if own and not self._outage.down:
                excused = self._set_aside(call, fault, now, refused=refused)
            elif refused:
                excused = self._refused(call, fault, now)
            else:
                excused = self._missed(call, fault, now, tried=tried)
            excused = excused or (missed and self._is_chance(call, now))
        elif fault.status is not None and self._outage.since is not None:
            self._is_back(now)  # any other status is an answer of the provider's
        self._pump()
        return excused

    def read_headers(self, headers: Mapping[str, Any]) -> None:
        """Follow an answer's rate-limit headers."""
        now = self._now()
        for quota in self._quotas.read(headers, self._last_usage, now):
            until = now + min(quota.seconds, LONGEST_QUOTA)
            if quota.seconds > 0:
                until += _jitter(quota.seconds)
            if quota.kind == "requests":
                others = self.in_flight - 1  # which the provider may or may not have counted
                self._quota_left, self._quota_until = quota.left - others, until
            elif not quota.suffices(self._last_usage):
                self._closed_until = max(self._closed_until, until)

    # -- failures

    def _set_aside(self, call: Call, fault: ModelError, now: float, *, refused: bool) -> bool:
        """Delay a conversation that fails for its own reasons; no other call waits for it."""
        self._concurrency.forget(call)
        others = self.in_flight > 0 or bool(self._queue) or now - self._last_answer < RECENTLY
        asked = min(LONGEST_DELAY, fault.retry_after or 0.0)
        if asked:
            call.not_before = now + asked + _jitter(asked)
        elif others and refused:
            call.not_before = now + _backoff(FIRST_BACKOFF, self._blame.failures(call))
        return others and (asked > 0 or refused) and self._is_patient(call, now)

    def _refused(self, call: Call, fault: ModelError, now: float) -> bool:
        """Make fewer calls, and none for as long as the provider says."""
        if self._outage.down:
            self._is_back(now)
        self._outage.begin(call, now)
        refusals = self._blame.failures(call)
        if not self._slow_down(call, fault, now):
            call.not_before = now + _backoff(FIRST_BACKOFF, refusals)
        self._give_up_in_time(call, fault, now)
        since = self._outage.since
        if since is not None and now - since >= NOTABLE_PAUSE and not self._outage.noticed:
            self._outage.noticed = True
            self._notices.refuses(self._outage.began, fault, now)
        return self._is_patient(call, now)

    def _missed(self, call: Call, fault: ModelError, now: float, *, tried: bool) -> bool:
        """Find out if the provider is down or overloaded: no answer came, or a server error."""
        if fault.status == 503 or fault.no_answer == "time" or fault.retry_after:
            self._slow_down(call, fault, now)
        if tried:
            call.ticket = next(self._tickets)  # another call is tried next: this one may be at fault
            self._outage.failed_again(now)
        elif self._outage.count(call, fault, now, too_many=self._misses.too_many(self.in_flight)):
            self._concurrency.restart()
        if self._outage.down:
            self._give_up_in_time(call, fault, now)
        if tried:
            self._outage.noticed = True
            self._notices.down(self._outage.began, fault, self._outage.next_try - now, now)
        return self._outage.down or bool(fault.retry_after and self._is_patient(call, now))

    def _slow_down(self, call: Call, fault: ModelError, now: float) -> bool:
        """Count a refusal; True if all calls pause for it."""
        if self._blame.failures(call) == 2:
            call.ticket = next(self._tickets)  # it may be one that is never taken: others go first
        asked = fault.retry_after or 0.0
        generation = self._concurrency.generation
        doubt = 1.0 if fault.status in REFUSED else DOUBT
        pause = self._concurrency.refused(call, now, named=asked, doubt=doubt)
        if self._concurrency.generation != generation:
            self._next_start = max(self._next_start, now + self._concurrency.spacing)
        if asked:
            pause = asked + _jitter(asked)
            if asked >= NOTABLE_PAUSE and now + asked > self._closed_until + NOTABLE_PAUSE:
                self._notices.pause(asked, fault, now)
        self._closed_until = max(self._closed_until, now + pause)
        return pause > 0

    def _is_chance(self, call: Call, now: float) -> bool:
        """True if a call may fail as often by chance, as others do now and then; it comes back soon."""
        failures = self._blame.failures(call)
        if not self._misses.by_chance(failures):
            return False
        call.not_before = max(call.not_before, now + _backoff(FIRST_BACKOFF, failures))
        return self._is_patient(call, now)

    def _is_patient(self, call: Call, now: float) -> bool:
        """True while the call's conversation may go on failing; less long at an unknown provider."""
        patience = self._patience if self.proven else min(self._patience, TRUST)
        return self._blame.seconds(call, now) < patience + ROUNDING  # the limiter gives up first

    def _is_back(self, now: float) -> None:
        if self._outage.noticed and self._outage.since is not None:
            self._notices.back(now - self._outage.since)
        self._outage.end()
        if self._end is not None:
            self._end.cancel()
            self._end = None

    def _give_up_in_time(self, call: Call, fault: ModelError, now: float) -> None:
        """Give the provider up when its patience is over, also while calls hang."""
        self._last_fault = fault
        if self._outage.since is None:
            return
        end = self._outage.since + self._patience
        if now >= end:
            self._give_up()
            end = now + LONGEST_DELAY
        elif self._end is None:
            self._end = asyncio.get_running_loop().call_at(end, self._give_up)
        self._closed_until = min(self._closed_until, end)
        call.not_before = min(call.not_before, end)

    def _give_up(self) -> None:
        self._end = None
        if self.proven and self._outage.of_one and not self._outage.down:
            self._pump()
            return  # its retries decide
        fault = self._last_fault
        assert fault is not None
        self._over = ProviderDownError(
            f"no good answer since {self._outage.began}, the last was: {fault.fault}",
            place=self.name,
            remedy="Resume when it answers again; --patience sets how long to wait.",
            status=fault.status,
        )
        self._over.__cause__ = fault
        self._pump()
        for call in self._calls:
            if call.attempt is not None:
                call.attempt.cancel()

    @property
    def given_up(self) -> ProviderDownError | None:
        """The error that all calls get once the provider is given up."""
        return self._over

    # -- admission

    def _delay(self, call: Call, now: float) -> float:
        """Seconds until the call may be made; infinite if another has to end first."""
        if self._outage.down:
            wait = math.inf if self._trying is not None else self._outage.next_try - now
        elif self.in_flight >= self._concurrency.at_once:
            wait = math.inf
        else:
            wait = max(self._closed_until, self._next_start) - now
            if self._quota_left < 1 and now < self._quota_until:
                wait = max(wait, self._quota_until - now)
        if wait <= 0 and self._rates is not None:
            return self._rates.delay(call.size, now)
        return wait

    def _admit(self, call: Call) -> None:
        now = self._now()
        self._calls.add(call)
        self._quota_left -= 1
        call.sent = now
        self._next_start = max(now, self._next_start) + self._concurrency.spacing
        self._blame.sent(call, self.in_flight)
        self._concurrency.sent(call, now)
        if self._outage.down:
            self._trying = call
        if self._rates is not None:
            call.reservation = self._rates.take(call.size, now)
            if self.proven:  # before, modules may have to be imported until the request is sent
                self._rates.sent(call.reservation, now)

    def _count_out(self, call: Call, usage: Usage | None, *, spent: bool = True) -> None:
        """Count the end of a call; without ``usage`` it used what was estimated, or nothing."""
        self._calls.discard(call)
        if call is self._trying:
            self._trying = None
        if self._rates is not None and call.reservation is not None:
            self._rates.settle(call.reservation, usage, self._now(), spent=spent)
            call.reservation = None

    async def _queued(self, call: Call) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (call.ticket, turn, call))
        self._pump()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.cancelled(call)  # it had been admitted
            else:
                self._pump()
            raise

    def _pump(self) -> None:
        """Admit the calls that may go, and come back when the next one may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue:
            _, turn, call = self._queue[0]
            if not turn.done():
                if self._over is not None:
                    turn.set_exception(self._over)
                else:
                    wait = self._delay(call, self._now())
                    if wait > 1e-9:
                        if wait < math.inf:
                            self._timer = asyncio.get_running_loop().call_later(wait, self._pump)
                        return
                    self._admit(call)
                    turn.set_result(None)
            heapq.heappop(self._queue)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


class Limiters:
    """The limiters of one evaluation, by provider and address: agent and user share one at the same place.

    ``ceiling``, ``rpm``, ``tpm`` and ``patience`` are those of each limiter. ``tell`` gets messages for
    people. ``used`` is True once a model's calls go through them.
    """

    def __init__(
        self,
        *,
        ceiling: int = 10,
        rpm: float | None = None,
        tpm: float | None = None,
        patience: float = 900.0,
    ) -> None:
        self.tell: Callable[[str], None] | None = None
        self.used = False
        self._options: dict[str, Any] = {"ceiling": ceiling, "rpm": rpm, "tpm": tpm, "patience": patience}
        self._limiters: dict[tuple[str, str], Limiter] = {}

    def of(self, provider: str, address: str | None) -> Limiter:
        """The limiter of a provider; without an ``address`` at its usual one."""
        place = (address or DEFAULT_ADDRESSES.get(provider, "")).rstrip("/")
        limiter = self._limiters.get((provider, place))
        if limiter is None:
            name = f"{provider} at {_public(place)}" if place else provider
            limiter = self._limiters[provider, place] = Limiter(name, tell=self._say, **self._options)
        return limiter

    @property
    def waiting(self) -> bool:
        """True while calls wait, or a provider is down."""
        return any(limiter.waiting or limiter.closed for limiter in self._limiters.values())

    def room(self) -> int:
        """Rollouts that may begin now so that their calls do not pile up.

        None while calls wait; otherwise as many as calls would be let through, and a few more, since not
        every rollout is calling a model all the time.
        """
        if not self._limiters:
            return int(START)
        if self.waiting:
            return 0
        return max(AT_LEAST, sum(limiter.room for limiter in self._limiters.values()))

    def _say(self, text: str) -> None:
        logger.info("%s", text)
        if self.tell is not None:
            self.tell(text)


def _backoff(first: float, failures: int) -> float:
    """Seconds until a call that was refused for a limit comes back."""
    return min(LONGEST_BACKOFF, first * 2.0 ** min(failures - 1, 10)) * _random.uniform(0.5, 1.0)


def _jitter(seconds: float) -> float:
    """An addition to a time that a provider names, so that several processes do not come back together."""
    return ROUNDING + _random.uniform(0.0, min(1.0, 0.1 * seconds))


def _public(address: str) -> str:
    """The address without user, password and query."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}" if parts.netloc else address
