"""Calls of many rollouts at one provider: simulated to the end, in virtual time."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from virtual_provider import (
    BucketLimit,
    Provider,
    WindowLimit,
    answer,
    now,
    refused,
    rollouts,
    unreachable,
    without_limiter,
)
from virtual_time import simulate

from reward_kit.agent.base import network
from reward_kit.agent.base.types import Completion
from reward_kit.agent.evaluation.job_runner import run_jobs
from reward_kit.agent.models import limiter
from reward_kit.agent.models.calls import Call, Caller, Limiters
from reward_kit.agent.models.limiter import Limiter
from reward_kit.agent.models.limits import START
from reward_kit.errors import ModelError, ModelSetupError, ProviderDownError


@pytest.fixture(autouse=True)
def same_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (limiter, network):
        monkeypatch.setattr(module, "_random", random.Random(1))


def timed_out() -> ModelError:
    return ModelError("no answer within 5 s", retryable=True, no_answer="time")


def broken_off() -> ModelError:
    return ModelError("closed the connection", retryable=True, no_answer="broken off")


def make(**options: Any) -> Limiter:
    return Limiter("stub at home", **{"ceiling": 500, **options})


def served(results: list[Any]) -> bool:
    return all(result is None for result in results)


def timed(provider: Provider, count: int, calls: int, **options: Any) -> tuple[list[Any], float, list[str]]:
    """Results and seconds of so many rollouts, and the messages meanwhile."""
    told: list[str] = []

    async def main() -> tuple[list[Any], float]:
        begin = now()
        one = make(**{"ceiling": count, "tell": told.append, **options})
        return await rollouts(provider, one, count, calls), now() - begin

    return (*simulate(main()), told)


class TestHealthy:
    def test_it_starts_with_fifty_calls_and_soon_lets_all_through(self) -> None:
        provider = Provider(latency=0.2)
        results, seconds, _ = timed(provider, 500, 10)
        assert served(results)
        assert len([time for time in provider.arrivals if time == provider.arrivals[0]]) == START
        assert provider.peak == 500
        assert seconds < 3.1  # ten answers after one another take 2.0 s

    def test_waiting_calls_are_served_in_order_and_cancelled_ones_free_their_places(self) -> None:
        order: list[int] = []

        async def call(one: Limiter, number: int) -> None:
            async def make() -> Completion:
                order.append(number)
                await asyncio.sleep(0.1)
                return answer()

            await one.attempt(Call(), make)

        async def main() -> None:
            one = make(ceiling=1)
            tasks = [asyncio.ensure_future(call(one, number)) for number in range(6)]
            await asyncio.sleep(0.05)
            for task in (tasks[0], tasks[3]):  # one is in flight, one waits
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (one.in_flight, one.waiting) == (0, 0)

        simulate(main())
        assert order == [0, 1, 2, 4, 5]


class TestRefusals:
    @pytest.mark.parametrize(("most", "seconds"), [(5, 1.0), (60, 60.0)])
    @pytest.mark.parametrize("say_when", [True, False])
    def test_a_limit_per_window_is_used_and_costs_no_call(
        self, most: int, seconds: float, say_when: bool
    ) -> None:
        provider = Provider(latency=0.05, verdict=WindowLimit(most, seconds, say_when=say_when))
        results, taken, _ = timed(provider, 60, 10)
        assert served(results)
        assert taken / seconds <= 600 / most * 1.6 + 3
        if say_when:
            assert provider.refusals <= 0.3 * len(provider.accepted)

    @pytest.mark.parametrize("slots", [1, 3, 20])
    def test_a_limit_of_calls_at_once_is_found(self, slots: int) -> None:
        provider = Provider(latency=0.05, verdict=lambda: refused() if provider.under_way > slots else None)
        results, seconds, _ = timed(provider, 50, 60)
        assert served(results)
        assert seconds < 1.5 * 50 * 60 * 0.05 / slots
        assert provider.refusals <= 0.3 * len(provider.accepted)

    def test_one_call_tries_before_the_time_that_a_window_names(self) -> None:
        begin, end = 1000.5, 1008.0
        provider = Provider(verdict=lambda: refused(retry_after=end - now()) if begin < now() < end else None)
        assert served(timed(provider, 40, 5, ceiling=20)[0])
        assert len([time for time in provider.arrivals if begin + 0.15 < time < end]) == 1

    @pytest.mark.parametrize(("rate", "burst"), [(60, 10), (50, 10), (5, 5)])
    def test_a_bucket_that_names_whole_seconds_is_used(self, rate: int, burst: int) -> None:
        provider = Provider(refusal_latency=0.02, verdict=BucketLimit(rate, burst, math.ceil))
        results, seconds, _ = timed(provider, 50, 40)
        assert served(results)
        assert seconds <= 1.15 * 50 * 40 / rate
        assert provider.refusals <= 0.1 * len(provider.accepted)

    @pytest.mark.parametrize("count", [1, 20, 200])
    @pytest.mark.parametrize("named", [1.0, 10.0])
    def test_a_call_that_is_refused_at_random_waits_alone(self, count: int, named: float) -> None:
        async def ideal() -> float:
            await without_limiter(provider(), count, 20)
            return now() - 1000.0

        def provider() -> Provider:
            chance = random.Random(3)
            return Provider(verdict=lambda: refused(retry_after=named) if chance.random() < 0.2 else None)

        results, seconds, _ = timed(provider(), count, 20)
        assert served(results)
        assert seconds <= 1.3 * simulate(ideal())

    def test_tokens_that_do_not_suffice_for_another_call_hold_it_back(self) -> None:
        left = iter([500, 50])
        provider = Provider(
            latency=0.1,
            headers=lambda: {
                "anthropic-ratelimit-tokens-remaining": str(next(left, 9999)),
                "anthropic-ratelimit-tokens-reset": "9s",
            },
        )
        timed(provider, 1, 3)
        first, second = (later - earlier for earlier, later in pairwise(provider.arrivals))
        assert first == pytest.approx(0.1)
        assert 9.1 <= second <= 10.2

    @pytest.mark.parametrize("retry_after", [None, 1.0, 25.0])
    def test_a_limit_that_is_used_up_when_the_run_begins_costs_no_call(
        self, retry_after: float | None
    ) -> None:
        provider = Provider(verdict=lambda: refused(retry_after=retry_after) if now() < 1050.0 else None)
        results, seconds, told = timed(provider, 5, 1)
        assert served(results)
        assert seconds <= 120.0
        assert len([line for line in told if "has refused all calls since" in line]) == 1
        assert "answers again after" in told[-1]

    @pytest.mark.parametrize(
        ("patience", "fault", "least", "most"),
        [(60.0, ProviderDownError, 60.0, 61.0), (900.0, ModelError, 60.0, 240.0)],
    )
    def test_one_that_only_refuses_is_given_up(
        self, patience: float, fault: type[ModelError], least: float, most: float
    ) -> None:
        (result,), seconds, _ = timed(Provider(verdict=refused), 1, 1, patience=patience)
        assert type(result) is fault
        assert least <= seconds <= most

    def test_a_wait_of_days_ends_with_the_patience(self) -> None:
        provider = Provider(verdict=lambda: refused(retry_after=1e6))
        results, seconds, told = timed(provider, 3, 1, patience=100.0)
        assert all(isinstance(result, ProviderDownError) for result in results)
        assert seconds == pytest.approx(100.0, abs=1.0)
        assert "stub at home is rate-limiting (HTTP 429); pausing for" in told[0]


class TestOutage:
    @staticmethod
    def between(begin: float, end: float, fault: ModelError) -> Provider:
        def verdict() -> ModelError | None:
            return fault if begin <= now() - 1000.0 < end else None

        return Provider(latency=0.1, verdict=verdict)

    @pytest.mark.parametrize(
        "fault",
        [unreachable(), refused(503), timed_out(), ModelError("the answer cannot be read", retryable=True)],
    )
    def test_all_wait_while_one_tries_again_and_none_fails(self, fault: ModelError) -> None:
        provider = self.between(1.0, 121.0, fault)
        results, _, told = timed(provider, 50, 20)
        assert served(results)
        tries = [time for time in provider.arrivals if 1003.0 < time < 1121.0]
        assert 4 <= len(tries) <= 60
        assert told[0].startswith("stub at home has not answered since ")
        assert "retrying in" in told[0]
        assert told[-1].startswith("stub at home answers again after ")
        back = min(time for time in provider.arrivals if time >= 1121.0)
        assert len([time for time in provider.arrivals if back <= time < back + 0.05]) <= 6

    def test_tries_are_at_most_a_minute_apart(self) -> None:
        provider = self.between(0.0, 1500.0, unreachable())
        assert served(timed(provider, 1, 1, patience=3600.0)[0])
        apart = [second - first for first, second in pairwise(provider.arrivals[4:])]
        assert 25.0 < max(apart) <= 60.5

    def test_patience_ends(self) -> None:
        provider = self.between(1.0, 1e9, unreachable())
        results, seconds, _ = timed(provider, 30, 20, patience=100.0)
        assert all(isinstance(result, ProviderDownError) for result in results)
        assert 100.0 <= seconds - 1.0 <= 101.0
        assert "stub at home: no good answer since " in str(results[0])
        assert "--patience" in str(results[0])

    def test_patience_ends_also_if_one_row_had_failed_alone_until_then(self) -> None:
        async def main() -> list[Any]:
            one, provider = make(patience=100.0), Provider()
            await provider.ask(one)
            provider.verdict = timed_out
            with pytest.raises(ModelError, match="no answer within 5 s"):
                await provider.ask(one)
            await asyncio.sleep(100.0)
            async with asyncio.timeout(1000.0):
                return await rollouts(provider, one, 5, 1)

        assert all(isinstance(result, ProviderDownError) for result in simulate(main()))

    def test_a_setup_error_is_raised_at_once(self) -> None:
        def verdict() -> ModelError | None:
            refused_key = ModelSetupError("the provider refuses the key (HTTP 401)", status=401)
            return None if len(provider.arrivals) <= 40 else refused_key

        provider = Provider(verdict=verdict)
        results, *_ = timed(provider, 100, 1, ceiling=10)
        assert sum(isinstance(result, ModelSetupError) for result in results) == 60


class TestFailuresByChance:
    @pytest.mark.parametrize("status", [408, 409, 425, 503, 521, 530])
    def test_a_named_wait_is_kept(self, status: int) -> None:
        answers = iter([ModelError("later", status=status, retryable=True, retry_after=9.0)])
        provider = Provider(verdict=lambda: next(answers, None))
        results, seconds, _ = timed(provider, 1, 1)
        assert served(results)
        assert seconds >= 9.0
        assert status in network.RETRYABLE_STATUS

    @pytest.mark.parametrize("fault", [lambda: refused(503), timed_out, unreachable])
    @pytest.mark.parametrize("share", [0.02, 0.2])
    def test_they_cost_little_time_and_no_rollout(
        self, share: float, fault: Callable[[], ModelError]
    ) -> None:
        chance = random.Random(7)
        provider = Provider(verdict=lambda: fault() if chance.random() < share else None)
        results, seconds, told = timed(provider, 100, 30)
        assert sum(result is not None for result in results) <= 1
        assert told == []
        assert seconds <= 1.8 * 30 * 0.2 / (1 - share) + 2.0


class Evaluation:
    """Rollouts of four calls each, of which those in ``bad`` always get ``fault``."""

    def __init__(self, bad: set[int], fault: ModelError, *, per_row: int = 1, **options: Any) -> None:
        self.told: list[str] = []
        self.limiter = make(**{"ceiling": 10, "tell": self.told.append, **options})
        self.good = Provider(latency=0.1)
        self.broken = Provider(verdict=lambda: fault)
        self.failed: set[int] = set()
        self.seconds_of_others = 0.0
        self._bad, self._per_row = bad, per_row

    async def play(self, count: int) -> None:
        begun = now()
        side_by_side = asyncio.Semaphore(10)

        async def one(number: int) -> None:
            caller = Caller(f"row {number // self._per_row}")
            provider = self.broken if number in self._bad else self.good
            try:
                async with side_by_side:
                    for _ in range(4):
                        await provider.ask(self.limiter, caller=caller)
            except ProviderDownError:
                raise
            except ModelError:
                self.failed.add(number)
            if number not in self._bad:
                self.seconds_of_others = max(self.seconds_of_others, now() - begun)

        await asyncio.gather(*map(one, range(count)))


class TestBlame:
    @pytest.mark.parametrize("bad", [{39}, {0, 7}])
    @pytest.mark.parametrize("fault", [refused(), refused(retry_after=2.0), refused(503, retry_after=5.0)])
    def test_a_conversation_that_is_always_refused_holds_up_no_other(
        self, fault: ModelError, bad: set[int]
    ) -> None:
        evaluation = Evaluation(bad, fault, patience=60.0)
        simulate(evaluation.play(40))
        assert evaluation.failed == bad
        # 1.6 s at full speed; the time that the provider names is believed twice
        assert evaluation.seconds_of_others <= 5.0 + 2 * len(bad) * ((fault.retry_after or 0.0) + 0.6)

    def test_where_no_call_is_answered_no_conversation_is_to_blame(self) -> None:
        evaluation = Evaluation(set(range(20)), refused(), patience=60.0)
        with pytest.raises(ProviderDownError):
            simulate(evaluation.play(20))

    @pytest.mark.parametrize("fault", [refused(500), broken_off(), timed_out()])
    @pytest.mark.parametrize(("bad", "per_row", "count"), [({0}, 1, 1), ({4, 5, 6, 7}, 4, 8)])
    def test_a_row_that_breaks_the_server_fails_by_its_retries(
        self, fault: ModelError, bad: set[int], per_row: int, count: int
    ) -> None:
        evaluation = Evaluation(bad, fault, per_row=per_row)
        simulate(evaluation.play(count))
        assert evaluation.failed == bad
        assert evaluation.told == []
        assert 4 * len(bad) <= len(evaluation.broken.arrivals) <= 6 * len(bad)

    def test_bad_requests_of_many_rows_show_no_outage(self) -> None:
        fault = ModelError("HTTP 400: no such argument", status=400)
        evaluation = Evaluation(set(range(30)), fault)
        simulate(evaluation.play(40))
        assert evaluation.failed == set(range(30))
        assert evaluation.told == []
        assert len(evaluation.broken.arrivals) == 30
        assert evaluation.seconds_of_others < 2.0

    @pytest.mark.parametrize(("fault", "count"), [(refused(500), 3), (timed_out(), 3), (unreachable(), 1)])
    def test_failures_of_several_rows_or_no_connection_show_an_outage(
        self, fault: ModelError, count: int
    ) -> None:
        async def main() -> Evaluation:
            evaluation = Evaluation(set(), fault)
            evaluation.good.verdict = lambda: fault if 1000.1 < now() < 1300.0 else None
            await evaluation.play(count)
            return evaluation

        evaluation = simulate(main())
        assert evaluation.failed == set()
        assert "answers again" in evaluation.told[-1]


class TestLimiters:
    def test_the_same_place_has_one_limiter(self) -> None:
        limiters = Limiters()
        openai = limiters.of("openai", None)
        assert limiters.of("openai", "https://api.openai.com/v1/") is openai
        assert limiters.of("openai", "http://localhost:8000/v1") is not openai
        assert limiters.of("anthropic", None) is not openai

    def test_rollouts_begin_as_calls_are_let_through(self) -> None:
        async def main() -> None:
            limiters = Limiters(ceiling=500)
            one = limiters.of("openai", None)
            assert await limiters.room() == START
            provider = Provider()
            asking = [asyncio.ensure_future(provider.ask(one)) for _ in range(int(START) + 5)]
            await asyncio.sleep(0.01)
            room = asyncio.ensure_future(limiters.room())
            await asyncio.sleep(0.01)
            assert not room.done()
            for call in asking[:6]:
                call.cancel()
            assert await room > 0

        simulate(main())

    def test_rollouts_wait_for_room_without_looking_for_it(self) -> None:
        """One call per 10 seconds: the loop wakes for calls, not a hundred times a second."""

        async def main() -> None:
            limiters = Limiters(ceiling=1)
            provider = Provider(latency=10.0)
            one = limiters.of("openai", None)

            async def play(_: int) -> None:
                await provider.ask(one)

            await run_jobs(range(50), play, concurrency=50, room=limiters.room)

        assert simulate(main(), most_steps=2000) is None
