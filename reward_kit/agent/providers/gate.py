"""The way to a provider that all calls of an evaluation share."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import math
from typing import TYPE_CHECKING, Any

from reward_kit.agent.deadline import held_up
from reward_kit.agent.providers.blame import LEAST, LONGEST_PUT_OFF, Blame, is_refusal
from reward_kit.agent.providers.concurrency import Concurrency
from reward_kit.agent.providers.hard_limits import HardLimits
from reward_kit.agent.providers.headers import quotas
from reward_kit.agent.providers.hints import LONGEST_HINT, Hints
from reward_kit.agent.providers.misses import Misses
from reward_kit.agent.providers.notices import WORTH_SAYING, OwnNotices, Voice
from reward_kit.agent.providers.outage import Outage
from reward_kit.agent.providers.pace import MINUTE
from reward_kit.agent.providers.pauses import ROUNDING, SHORT_WAIT, Pauses, jitter, short_wait
from reward_kit.agent.providers.spacing import Spacing
from reward_kit.agent.providers.trial import IN_A_ROW, Trial
from reward_kit.errors import ModelError, ProviderDownError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reward_kit.agent.completion import Completion, Usage
    from reward_kit.agent.providers.hard_limits import Limits
    from reward_kit.agent.providers.notices import Notices
    from reward_kit.agent.providers.visit import Visit

TRUST = 65.0
"""Seconds that a provider which has not answered yet may refuse: limits are mostly those of a minute."""
BACK_OFF, EASE_OFF = 0.5, 0.75
"""What is left of the concurrency after a refusal, and after a fault that may come of too many calls."""

logger = logging.getLogger(__name__)


class Gate:
    """Lets calls to one provider through: as many at once as it bears, and none while it wants none.

    ``name`` is what a person calls it. ``ceiling`` bounds the calls at once; ``rpm`` and ``tpm`` are requests
    and tokens per minute. A provider that gives no good answer for ``patience`` seconds is
    given up: every call then raises ``ProviderDownError``. ``tell`` gets what is worth telling. Calls that
    wait go in the order in which they came. Used in one event loop.
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
        self.in_flight = 0
        self._concurrency = Concurrency(ceiling)
        self._limits: Limits | None = HardLimits(rpm, tpm, window=MINUTE) if rpm or tpm else None
        self._patience = patience
        self._voice = Voice(name, OwnNotices(tell))
        self._tickets = itertools.count()
        self._queue: list[tuple[int, asyncio.Future[None], Visit]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._outage = Outage()
        self._trying: Visit | None = None
        self._pauses = Pauses()
        self._spacing = Spacing()
        self._trial = Trial(self._concurrency, self._spacing)
        self._hints = Hints()
        self._misses = Misses()
        self._blame = Blame()
        self._refusals = 0
        self._last_usage: Usage | None = None
        self._over: ProviderDownError | None = None

    @property
    def waiting(self) -> int:
        """Calls that wait to be let through."""
        return len(self._queue)

    @property
    def room(self) -> int:
        """Calls that the concurrency would let through now."""
        return max(0, int(self._concurrency.limit) - self.in_flight)

    @property
    def closed(self) -> bool:
        """Whether nobody is let through, for a while or until the provider answers again."""
        return self._outage.down or self._now() < self._pauses.closed_until

    @property
    def proven(self) -> bool:
        """Whether a call has been answered."""
        return self._last_usage is not None

    @property
    def wants_size(self) -> bool:
        """Whether it matters how long a request is."""
        return self._limits is not None and self._limits.wants_size

    def keep_to(self, limits: Limits) -> None:
        """Keep to these hard limits in place of ``rpm`` and ``tpm``; before the first call."""
        self._limits = limits
        limits.wake = self._pump

    def tell_by(self, notices: Notices) -> None:
        """Have ``notices`` told in place of ``tell``."""
        self._voice = Voice(self.name, notices)

    # -- one call

    async def enter(self, visit: Visit) -> None:
        """Wait until the call may be made; ``left`` or ``failed`` has to follow.

        Raises ``ProviderDownError``.
        """
        if visit.ticket < 0:
            visit.ticket = next(self._tickets)
        await visit.its_time()
        if self._over is not None:
            raise self._over
        if self._goes_ahead(visit) or (not self._queue and self._delay(visit, self._now()) <= 0):
            self._admit(visit)
        else:
            with held_up(), visit.waiting():
                await self._queued(visit)

    def is_trying(self, visit: Visit) -> bool:
        """Whether this call is to find out if the provider answers again."""
        return visit is self._trying

    def left(self, visit: Visit, answer: Completion | None = None) -> None:
        """The call has its answer; or none, if it was cancelled."""
        now = self._now()
        full = self.in_flight + 1 > self._concurrency.limit or bool(self._queue)
        self._count_out(visit, None if answer is None else answer.usage)
        if answer is None:
            self._trial.forget(visit)
        else:
            if self._outage.since is not None:
                self._is_back(now)
            self._last_usage = answer.usage
            self._hints.answered(visit.sent, now)
            self._spacing.answered(now - visit.sent)
            self._misses.answered()
            self._blame.answered(visit, now)
            self._trial.answered(visit)
            if full:
                self._concurrency.grow(visit.generation)
        if self._queue:
            self._pump()

    def failed(self, visit: Visit, fault: ModelError) -> bool:
        """The call failed; True if it did so only because the provider was not to be asked just now.

        Then it should be made again, and that is no retry.
        """
        now = self._now()
        tried = visit is self._trying
        under_way = self.in_flight
        self._count_out(visit, None, spent=fault.status is None)
        excused = False
        refused = is_refusal(fault)
        missed = fault.retryable and not refused and (fault.status is None or fault.status >= 500)
        if (refused or missed) and self._is_own_fault(visit, fault, now):
            excused = self._set_aside(visit, fault, now)
        elif refused:
            excused = self._refuse(visit, fault, under_way, now)
        else:
            self._trial.forget(visit)
            if missed:
                excused = self._miss(visit, fault, under_way, now, tried=tried)
            elif fault.status is not None and self._outage.since is not None:
                self._is_back(now)  # whatever it says, it answers
        self._pump()
        return excused

    def heed(self, headers: Mapping[str, Any]) -> None:
        """Look what an answer's headers say of the provider's limits."""
        now = self._now()
        for quota in quotas(headers):
            if not self._hints.believes(quota, self._last_usage, now):
                continue
            until = now + min(quota.seconds, LONGEST_HINT) + jitter(quota.seconds) * (quota.seconds > 0)
            if quota.kind == "requests":
                others = self.in_flight - 1  # which the provider may or may not have counted
                self._pauses.leave(quota.left - others, until)
            elif not quota.suffices(self._last_usage):
                self._pauses.close(until)

    # -- what became of calls

    def _is_own_fault(self, visit: Visit, fault: ModelError, now: float) -> bool:
        """Whether the call fails because of its conversation, and the provider has nothing to do with it."""
        if fault.no_answer == "connection":
            return False
        own = self._blame.failed(visit, now, least=IN_A_ROW if self._trial.on else LEAST)
        return own and not self._outage.down

    def _set_aside(self, visit: Visit, fault: ModelError, now: float) -> bool:
        """Nobody else waits for a conversation that is never taken.

        It keeps its place for the time that it comes back: behind the others it would come as often as they
        are as many, and might meet the same state of a limit each time.
        """
        self._concurrency.forget(visit)
        self._trial.forget(visit)
        others = self.in_flight > 0 or bool(self._queue)
        return self._blame.puts_off(visit, fault, now, others=others) and self._excused(visit, now)

    def _refuse(self, visit: Visit, fault: ModelError, under_way: int, now: float) -> bool:
        """Too many calls: fewer from now on, and none for a while."""
        if self._outage.down:
            self._is_back(now)
        self._outage.begin(now, visit)
        on = self._trial.on
        if self._trial.excuses(visit, fault, now):
            return self._excused(visit, now)
        self._let_others_go_first(visit)
        passed = 0 if on else self._concurrency.passed(visit)  # a trial ends as if none had been let through
        number = visit.among if self.proven else under_way  # at first, many are sent at the same moment
        if self._refusals and not passed:
            first = self._concurrency.stay(visit.generation)
        else:
            first = self._concurrency.shrink(visit.generation, BACK_OFF, number)
        if first:
            self._refusals = 1 if passed else self._refusals + 1
        if fault.retry_after:
            self._keep_away(fault, now)
        elif first:
            self._pauses.close(now + short_wait(self._refusals, passed))
        if first or fault.retry_after:
            alone = number == 1 and not self._trial.let_through
            odd = self._spacing.refused(now, passed, alone=alone, told=fault.retry_after or 0.0)
            if not (passed and fault.retry_after and self._spacing.is_cramped):
                self._few_at_once(fault, first=first, all_passed=passed >= number)
            if first or not fault.retry_after:
                self._trial.heeded(visit, fault, passed, number, now, odd=odd)
        self._give_up_in_time(fault, now)
        self._tell_of_refusals(fault, now)
        return self._excused(visit, now)

    def _few_at_once(self, fault: ModelError, *, first: bool, all_passed: bool) -> None:
        """Begin with few calls after the pause; with as many as went before it, where its time was named."""
        if first and (fault.retry_after or 0.0) >= SHORT_WAIT:
            self._concurrency.pause()
        if fault.retry_after or not all_passed:
            self._concurrency.restart()

    def _miss(self, visit: Visit, fault: ModelError, under_way: int, now: float, *, tried: bool) -> bool:
        """No answer, or an error of the server's: it may be overloaded, or down."""
        self._misses.missed()
        if fault.status == 503 or fault.no_answer == "time":
            self._ease_off(visit, fault, under_way)
        if fault.retry_after:
            self._keep_away(fault, now)
            self._let_others_go_first(visit)
        if tried:
            visit.ticket = next(self._tickets)  # another call is tried next: it may be this one's own fault
            self._outage.failed_again(now)
        elif self._outage.count(visit, fault, now, too_many=self._misses.too_many(self.in_flight)):
            self._concurrency.shrink(self._concurrency.generation, BACK_OFF, under_way)
            self._concurrency.restart()
        if self._outage.down:
            self._give_up_in_time(fault, now)
        if tried and self._over is None:
            self._outage.told = True
            self._voice.down(self._outage.began, fault, self._outage.next_try - now)
        return self._outage.down or bool(fault.retry_after and self._excused(visit, now))

    def _ease_off(self, visit: Visit, fault: ModelError, under_way: int) -> None:
        """Fewer calls at once, unless no more fail than do by chance."""
        named = bool(fault.retry_after)
        if not named and (self._misses.few(self.in_flight) or self._trial.excuses(visit, fault, self._now())):
            return
        first = self._concurrency.shrink(visit.generation, EASE_OFF, under_way)
        if first and not named:
            self._trial.missed(single=self._misses.in_a_row == 1)

    def _excused(self, visit: Visit, now: float) -> bool:
        """Whether a call that was told to come back may do so: not for ever, least of all to a stranger."""
        patience = self._patience if self.proven else min(self._patience, TRUST)
        return self._blame.seconds(visit, now) < patience + ROUNDING  # the gate gives up first

    def _tell_of_refusals(self, fault: ModelError, now: float) -> None:
        """Say it once where a provider has refused all calls for a while."""
        outage = self._outage
        if outage.told or self._over is not None or outage.since is None:
            return
        if now - outage.since >= WORTH_SAYING:
            outage.told = True
            self._voice.refuses(outage.began, fault)

    def _is_back(self, now: float) -> None:
        outage = self._outage
        if outage.told and outage.since is not None:
            self._voice.back(now - outage.since)
        if outage.down:
            self._pauses.calm(now)
        outage.end()

    def _give_up_in_time(self, fault: ModelError, now: float) -> None:
        """Give the provider up if it has had all the patience there is; till then, see that it is tried."""
        since = self._outage.since
        if since is None:
            return
        end = since + self._patience
        if now < end:
            self._outage.next_try = min(self._outage.next_try, end)
            self._pauses.open_by(end)
            return
        if self.proven and self._outage.of_one and not self._outage.down:
            self._pauses.open_by(now + LONGEST_PUT_OFF)  # its retries decide
            return
        self._over = ProviderDownError(
            f"no good answer since {self._outage.began}, the last was: {fault.fault}",
            place=self.name,
            remedy="Going on is possible when it answers again; --patience says how long to wait.",
            status=fault.status,
        )
        self._over.__cause__ = fault

    # -- who may go

    def _delay(self, visit: Visit, now: float) -> float:
        """Seconds until the call may go as far as the clock decides; infinite if another has to end first."""
        wait = self._own_delay(now)
        if self._limits is None:
            return wait
        if wait > 0:
            self._limits.release()
            return wait
        return self._limits.delay(visit.size)

    def _goes_ahead(self, visit: Visit) -> bool:
        """Whether the call goes before those that wait: where it was sent ahead, and no hard limit is met."""
        ahead, visit.ahead = visit.ahead, False
        if not ahead or (self._limits is not None and self._limits.delay(visit.size) > 0):
            self._trial.forget(visit)
            return False
        return True

    def _own_delay(self, now: float) -> float:
        """Seconds until the next call may go as far as the provider's answers decide."""
        if self._outage.down:
            return math.inf if self._trying is not None else self._outage.next_try - now
        at_once = self._concurrency.limit if self.in_flight else math.inf
        wait = max(self._pauses.wait(now), self._spacing.wait(now, at_once))
        if wait > 0:
            return wait
        self._concurrency.resume(self.in_flight)
        return math.inf if self.in_flight + 1 > self._concurrency.limit else 0.0

    def _admit(self, visit: Visit) -> None:
        now = self._now()
        self.in_flight += 1
        self._pauses.admitted(now)
        self._spacing.sent(now)
        self._trial.sent(visit)
        visit.sent = now
        visit.among = self.in_flight
        self._blame.sent(visit)
        self._concurrency.send(visit)
        if self._outage.down:
            self._trying = visit
        if self._limits is not None:
            visit.taken = self._limits.take(visit.size)
            if self.proven:  # before, modules may have to be imported until the request leaves
                self._limits.sent(visit.taken)

    def _count_out(self, visit: Visit, usage: Usage | None, *, spent: bool = True) -> None:
        """The call is over; without ``usage`` it has used what was guessed, or nothing if not ``spent``."""
        self.in_flight -= 1
        if visit is self._trying:
            self._trying = None
        if self._limits is not None and visit.taken is not None:
            self._limits.settle(visit.taken, usage, spent=spent)

    async def _queued(self, visit: Visit) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (visit.ticket, turn, visit))
        self._pump()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.left(visit)  # its turn had come
            else:
                self._pump()
            raise

    def _pump(self) -> None:
        """Let through whoever may go, and come back when the next one may."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue:
            _, turn, visit = self._queue[0]
            if not turn.done():
                if self._over is not None:
                    turn.set_exception(self._over)
                else:
                    wait = self._delay(visit, self._now())
                    if wait > 0:
                        if wait < math.inf:
                            self._timer = asyncio.get_running_loop().call_later(wait, self._pump)
                        return
                    self._admit(visit)
                    turn.set_result(None)
            heapq.heappop(self._queue)
        if self._limits is not None:
            self._limits.release()

    def _let_others_go_first(self, visit: Visit) -> None:
        """Behind all that wait, if it has been refused before: it may be one that is never taken."""
        if self._blame.failures(visit) > 1:
            visit.ticket = next(self._tickets)

    def _keep_away(self, fault: ModelError, now: float) -> None:
        """Let nobody through for as long as the provider asks."""
        asked = fault.retry_after or 0.0
        until = now + asked + jitter(asked)
        if asked >= WORTH_SAYING and until > self._pauses.closed_until + WORTH_SAYING:
            self._voice.asks(asked, fault)
        self._pauses.close(until)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
