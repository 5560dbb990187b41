"""How many calls go to a provider at once, and when: simulated to the end, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from virtual_provider import Provider, SlidingLimit, WindowLimit, now, refused, rollouts, unreachable
from virtual_time import simulate

from reward_kit.agent.providers import Gate, Gates, Visit
from reward_kit.agent.providers.concurrency import START, Concurrency
from reward_kit.errors import ModelError, ModelSetupError, ProviderDownError


def gate(**options: Any) -> Gate:
    return Gate("stub at home", **{"ceiling": 500, **options})


def served(results: list[Any]) -> bool:
    return all(result is None for result in results)


class TestHealthy:
    def test_it_starts_modestly_and_soon_lets_everybody_through(self) -> None:
        provider = Provider(latency=0.2)

        async def main() -> float:
            begin = now()
            assert served(await rollouts(provider, gate(), 500, 10))
            return now() - begin

        seconds = simulate(main())
        assert len([time for time in provider.arrivals if time == provider.arrivals[0]]) == START
        assert provider.peak == 500
        assert seconds < 3.05  # ten answers after one another take 2.0 s

    def test_there_are_never_more_calls_than_the_ceiling(self) -> None:
        provider = Provider()
        simulate(rollouts(provider, gate(ceiling=7), 50, 4))
        assert provider.peak == 7

    def test_calls_that_wait_go_in_the_order_in_which_they_came(self) -> None:
        gone: list[int] = []

        async def main() -> None:
            one = gate(ceiling=1)

            async def call(number: int) -> None:
                visit = Visit()
                await one.enter(visit)
                gone.append(number)
                await asyncio.sleep(0.1)
                one.left(visit)

            await asyncio.gather(*map(call, range(20)))

        simulate(main())
        assert gone == list(range(20))

    def test_calls_that_are_cancelled_leave_their_places_to_others(self) -> None:
        provider = Provider(latency=1.0)

        async def main() -> None:
            one = gate(ceiling=2)
            tasks = [asyncio.ensure_future(provider.ask(one)) for _ in range(6)]
            await asyncio.sleep(0.5)
            for task in (tasks[0], tasks[3]):  # one is under way, one waits
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert (one.in_flight, one.waiting) == (0, 0)
            await provider.ask(one)

        simulate(main())
        assert len(provider.accepted) == 5

    def test_a_call_cancelled_in_the_moment_of_its_turn_gives_the_turn_back(self) -> None:
        async def main() -> None:
            one = gate(ceiling=1)
            first = Visit()
            await one.enter(first)
            waiting = asyncio.ensure_future(one.enter(Visit()))
            await asyncio.sleep(0)
            one.left(first)
            waiting.cancel()
            await asyncio.wait({waiting})
            assert waiting.cancelled()
            assert one.in_flight == 0

        simulate(main())


class TestRefusals:
    @pytest.mark.parametrize(("most", "seconds"), [(5, 1.0), (20, 2.0), (60, 60.0), (300, 10.0)])
    @pytest.mark.parametrize("say_when", [True, False])
    def test_a_limit_per_window_is_found_with_few_refusals_and_no_call_lost(
        self, most: int, seconds: float, say_when: bool
    ) -> None:
        provider = Provider(latency=0.05, verdict=WindowLimit(most, seconds, say_when=say_when))

        async def main() -> float:
            begin = now()
            assert served(await rollouts(provider, gate(), 60, 10))
            return now() - begin

        taken = simulate(main())
        windows = taken / seconds
        assert len(provider.accepted) == 600
        assert provider.refusals <= 60 + (4 if say_when else 15) * windows
        assert windows <= 600 / most * 1.6 + 3  # most of what is allowed is used

    @pytest.mark.parametrize(("most", "seconds"), [(1, 1.0), (2, 1.0), (3, 10.0), (1, 5.0)])
    def test_how_far_apart_calls_have_to_be_is_learned_where_nothing_says_it(
        self, most: int, seconds: float
    ) -> None:
        provider = Provider(latency=0.05, verdict=SlidingLimit(most, seconds))

        async def main() -> float:
            begin = now()
            assert served(await rollouts(provider, gate(patience=3600.0), 20, 10))
            return now() - begin

        taken = simulate(main())
        assert provider.refusals <= 0.4 * len(provider.accepted)
        assert taken <= 1.4 * len(provider.accepted) * seconds / most

    @pytest.mark.parametrize(
        ("limit", "per_second"),
        [
            (lambda: SlidingLimit(60, 60.0), 1.0),
            (lambda: SlidingLimit(600, 60.0), 10.0),
            (lambda: WindowLimit(600, 60.0, say_when=False), 10.0),
        ],
    )
    @pytest.mark.parametrize("latency", [0.5, 3.0])
    def test_calls_of_a_minute_that_are_used_up_leave_the_calls_at_once_as_they_were(
        self, limit: Callable[[], Any], per_second: float, latency: float
    ) -> None:
        provider = Provider(latency=latency, verdict=limit())

        async def main() -> float:
            begin = now()
            assert served(await rollouts(provider, gate(ceiling=100), 180, 10))
            return now() - begin

        taken = simulate(main())
        assert taken <= 1.5 * len(provider.accepted) / per_second
        assert provider.refusals <= 0.4 * len(provider.accepted)

    @pytest.mark.parametrize("every", [3, 5, 7, 9, 10, 12, 20])
    def test_refusals_that_have_nothing_to_do_with_how_often_it_is_asked_slow_nothing_down_for_long(
        self, every: int
    ) -> None:
        numbers = itertools.count(1)
        provider = Provider(latency=0.05, verdict=lambda: None if next(numbers) % every else refused())

        async def main() -> float:
            begin = now()
            assert served(await rollouts(provider, gate(), 20, 20))
            return now() - begin

        assert simulate(main()) <= 400 * provider.latency + 0.4 * provider.refusals

    @pytest.mark.parametrize(("share", "status"), [(0.05, 503), (0.05, 429)])
    def test_faults_by_chance_do_not_take_the_calls_at_once_down_to_one(
        self, share: float, status: int
    ) -> None:
        chance = random.Random(5)
        provider = Provider(latency=1.0, verdict=lambda: refused(status) if chance.random() < share else None)

        async def main() -> float:
            begin = now()
            assert served(await rollouts(provider, gate(ceiling=100), 100, 20))
            return now() - begin

        assert simulate(main()) <= 0.5 * len(provider.accepted) * provider.latency

    @pytest.mark.parametrize("slots", [1, 3, 20])
    def test_what_takes_so_many_calls_at_once_is_soon_asked_so_many_at_once(self, slots: int) -> None:
        async def main() -> float:
            provider = Provider(
                latency=0.05, verdict=lambda: refused() if provider.under_way > slots else None
            )
            begun = now()
            assert served(await rollouts(provider, gate(ceiling=50), 100, 60))
            assert provider.refusals < 60
            return now() - begun

        ideal = 100 * 60 * 0.05 / slots
        assert simulate(main()) < 1.6 * ideal

    def test_one_burst_of_refusals_is_answered_once(self) -> None:
        concurrency = Concurrency(64)
        while concurrency.limit < 64:
            concurrency.grow(concurrency.generation)
        sent = concurrency.generation
        assert [concurrency.shrink(sent, 0.5, 40) for _ in range(40)] == [True] + [False] * 39
        assert concurrency.limit == 20  # half of those that were under way
        concurrency.grow(sent)  # a late answer to a call of before says nothing
        assert concurrency.limit == 20
        for _ in range(20):
            concurrency.grow(concurrency.generation)
        assert concurrency.limit == pytest.approx(24.1, abs=0.1)  # nearly a quarter of the way back to 40

    def test_nobody_asks_before_the_time_that_the_provider_named(self) -> None:
        named: list[float] = []

        def verdict() -> ModelError | None:
            if len(provider.arrivals) in range(30, 40):
                named.append(now() + 7.0)
                return refused(retry_after=7.0)
            return None

        provider = Provider(verdict=verdict)
        assert served(simulate(rollouts(provider, gate(), 40, 5)))
        first, last = min(named) - 7.0, max(named)
        assert named
        assert not [time for time in provider.arrivals if first + 0.3 < time < last - 0.3]
        after = [time for time in provider.arrivals if time >= last - 0.3]
        assert after[0] >= first + 7.0
        assert len([time for time in after if time < after[0] + 0.05]) <= 6  # no stampede

    def test_a_request_per_header_that_nothing_is_left_holds_the_others_back(self) -> None:
        limit = WindowLimit(10, 5.0)
        provider = Provider(
            latency=0.1,
            verdict=limit,
            headers=lambda: {
                "x-ratelimit-remaining-requests": str(limit.left),
                "x-ratelimit-reset-requests": f"{5.0 - now() % 5.0:.3f}s",
            },
        )
        assert served(simulate(rollouts(provider, gate(ceiling=8), 20, 5)))
        assert provider.refusals == 0

    @pytest.mark.parametrize("kind", ["requests", "tokens"])
    def test_headers_that_say_the_same_in_all_answers_cost_two_waits(self, kind: str) -> None:
        provider = Provider(
            latency=0.1,
            headers=lambda: {f"x-ratelimit-remaining-{kind}": "0", f"x-ratelimit-reset-{kind}": "24h"},
        )
        assert served(simulate(rollouts(provider, gate(ceiling=8), 20, 5)))
        assert 60.0 <= provider.arrivals[-1] - provider.arrivals[0] <= 130.0

    def test_a_long_time_until_a_limit_is_whole_again_is_heeded_where_it_holds(self) -> None:
        """Ten calls, and one more each two minutes: what the headers say, and refusals bear out."""
        taken: list[float] = []

        def left() -> int:
            return 10 + int((now() - begun[0]) / 120.0) - len(taken)

        def verdict() -> Any:
            begun.append(now())
            if left() < 1:
                return refused(retry_after=120.0)
            taken.append(now())
            return None

        begun: list[float] = []
        provider = Provider(
            latency=0.1,
            verdict=verdict,
            headers=lambda: {
                "x-ratelimit-remaining-requests": str(left()),
                "x-ratelimit-reset-requests": "600s",
            },
        )
        assert served(simulate(rollouts(provider, gate(ceiling=8), 7, 2)))
        assert provider.refusals <= 8

    def test_tokens_that_do_not_suffice_for_another_call_hold_it_back(self) -> None:
        left = iter([500, 50])

        async def main() -> list[float]:
            one = gate(ceiling=1)
            provider = Provider(
                latency=0.1,
                headers=lambda: {
                    "anthropic-ratelimit-tokens-remaining": str(next(left, 9999)),
                    "anthropic-ratelimit-tokens-reset": "9s",
                },
            )
            for _ in range(3):
                await provider.ask(one)
            return [second - first for first, second in pairwise(provider.arrivals)]

        first, second = simulate(main())
        assert first == pytest.approx(0.1)
        assert 9.1 <= second <= 10.2

    @pytest.mark.parametrize("retry_after", [None, 1.0, 25.0])
    def test_a_limit_that_is_used_up_when_the_run_begins_costs_no_call(
        self, retry_after: float | None
    ) -> None:
        async def main() -> tuple[list[Any], list[str], Provider]:
            said: list[str] = []
            provider = Provider(verdict=lambda: refused(retry_after=retry_after) if now() < end else None)
            end = now() + 50.0
            return await rollouts(provider, gate(tell=said.append), 5, 1, retries=1), said, provider

        results, said, provider = simulate(main())
        assert not [result for result in results if isinstance(result, BaseException)]
        assert provider.arrivals[-1] - provider.arrivals[0] <= 120.0
        assert len([line for line in said if "takes no calls since" in line]) == 1
        assert "answers again" in said[-1]

    def test_one_that_never_answered_is_not_waited_for_much_longer_than_a_minute(self) -> None:
        async def main() -> tuple[list[Any], float]:
            begun = now()
            return await rollouts(Provider(verdict=refused), gate(), 1, 1, retries=1), now() - begun

        (result,), seconds = simulate(main())
        assert isinstance(result, ModelError)
        assert result.status == 429
        assert 60.0 < seconds < 240.0

    def test_a_provider_that_refuses_for_ever_is_given_up_when_patience_ends(self) -> None:
        async def main() -> tuple[list[Any], float]:
            begun = now()
            one = gate(patience=60.0)
            return await rollouts(Provider(verdict=refused), one, 3, 1, retries=1), now() - begun

        results, seconds = simulate(main())
        assert all(isinstance(result, ProviderDownError) for result in results)
        assert seconds == pytest.approx(60.0, abs=1.0)

    def test_a_call_that_others_overtake_for_ever_is_given_up(self) -> None:
        async def main() -> int:
            one = gate(patience=120.0)
            good = Provider(latency=0.1)
            bad = Provider(verdict=refused)

            async def others() -> None:
                while True:
                    await good.ask(one)

            running = asyncio.ensure_future(others())
            with pytest.raises(ModelError):
                await bad.ask(one)
            running.cancel()
            return len(bad.arrivals)

        assert simulate(main()) > 10


class TestOutage:
    def outage(self, begin: float, end: float, fault: ModelError | None = None) -> Provider:
        """A provider that is down between two moments, in seconds after the start."""

        def verdict() -> ModelError | None:
            return (fault or unreachable()) if begin <= now() - 1000.0 < end else None

        return Provider(latency=0.1, verdict=verdict)

    @pytest.mark.parametrize(
        "fault",
        [
            unreachable(),
            refused(500),
            refused(503),
            ModelError("no answer within 5 s", retryable=True, no_answer="time"),
            ModelError("the answer cannot be read", retryable=True),
        ],
    )
    def test_all_wait_while_one_tries_again_and_none_fails(self, fault: ModelError) -> None:
        told: list[str] = []
        provider = self.outage(1.0, 121.0, fault)
        results = simulate(rollouts(provider, gate(tell=told.append, ceiling=50), 50, 20))
        assert served(results)
        tries = [time for time in provider.arrivals if 1003.0 < time < 1121.0]
        assert 4 <= len(tries) <= 60  # one at a time, further and further apart
        assert provider.refusals <= 50 + 30 + len(tries)
        assert any(text.startswith("stub at home does not answer since ") for text in told)
        assert "trying again in" in told[0]
        assert told[-1].startswith("stub at home answers again after ")
        back = min(time for time in provider.arrivals if time >= 1121.0)
        assert len([time for time in provider.arrivals if back <= time < back + 0.05]) <= 6

    def test_tries_are_at_most_a_minute_apart_and_jittered(self) -> None:
        provider = self.outage(0.0, 1500.0)
        assert served(simulate(rollouts(provider, gate(patience=3600.0), 1, 1)))
        apart = [second - first for first, second in pairwise(provider.arrivals[4:])]
        assert all(gap <= 60.5 for gap in apart)
        assert max(apart) > 25.0
        assert len({round(gap, 6) for gap in apart}) == len(apart)

    def test_patience_ends(self) -> None:
        provider = self.outage(1.0, 1e9)

        async def main() -> tuple[list[Any], float]:
            results = await rollouts(provider, gate(patience=100.0), 30, 20)
            return results, now() - 1001.0

        results, waited = simulate(main())
        assert all(isinstance(result, ProviderDownError) for result in results)
        assert 100.0 <= waited <= 101.0
        text = str(results[0])
        assert "stub at home: no good answer since " in text
        assert "cannot connect" in text
        assert "--patience" in text

    def test_without_retries_a_call_fails_and_the_others_still_wait(self) -> None:
        provider = self.outage(0.5, 60.0)
        results = simulate(rollouts(provider, gate(ceiling=20), 20, 20, retries=0))
        failed = [result for result in results if result is not None]
        assert 0 < len(failed) <= 20
        assert all(type(result) is ModelError for result in failed)

    def test_a_single_call_that_always_breaks_the_server_is_not_an_outage(self) -> None:
        async def main() -> list[str]:
            told: list[str] = []
            one = gate(tell=told.append)
            bad = Provider(verdict=lambda: refused(500))
            with pytest.raises(ModelError, match="HTTP 500"):
                await bad.ask(one)
            assert len(bad.arrivals) == 4
            return told

        assert simulate(main()) == []

    def test_a_fault_now_and_then_costs_a_retry_and_no_pause(self) -> None:
        chance = random.Random(3)
        provider = Provider(latency=0.2, verdict=lambda: refused(503) if chance.random() < 0.05 else None)
        told: list[str] = []
        assert served(simulate(rollouts(provider, gate(ceiling=30, tell=told.append), 30, 30)))
        assert told == []

    def test_a_refused_key_stops_at_once(self) -> None:
        def verdict() -> ModelError | None:
            if len(provider.arrivals) <= 40:
                return None
            return ModelSetupError("the provider refuses the key (HTTP 401)", status=401)

        provider = Provider(verdict=verdict)

        async def main() -> None:
            one = gate(ceiling=10)
            running = asyncio.gather(*(provider.ask(one) for _ in range(100)))
            with pytest.raises(ModelSetupError):
                await running

        simulate(main())


class TestGates:
    def test_the_same_place_has_one_gate(self) -> None:
        gates = Gates()
        openai = gates.of("openai", None)
        assert gates.of("openai", "https://api.openai.com/v1/") is openai
        assert gates.of("openai", "http://localhost:8000/v1") is not openai
        assert gates.of("anthropic", None) is not openai

    def test_secrets_in_an_address_are_not_told(self) -> None:
        assert Gates().of("openai", "http://me:word@host:1/v1?key=x").name == "openai at http://host:1/v1"

    def test_rollouts_begin_as_calls_are_let_through(self) -> None:
        async def main() -> list[int]:
            gates = Gates(ceiling=500)
            one = gates.of("openai", None)
            found = [gates.room()]
            visits = [Visit() for _ in range(START + 5)]
            entering = [asyncio.ensure_future(one.enter(visit)) for visit in visits]
            await asyncio.sleep(0.01)
            found.append(gates.room())
            for visit in visits[:5]:
                one.left(visit)
            await asyncio.sleep(0.01)
            found.append(gates.room())
            await asyncio.gather(*entering)
            return found

        first, full, again = simulate(main())
        assert first == START
        assert full == 0
        assert again > 0
