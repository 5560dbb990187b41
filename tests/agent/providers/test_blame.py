"""One conversation that a provider never takes costs itself and no other: simulated in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from virtual_provider import Provider, SlidingLimit, now, played, refused, unreachable
from virtual_time import simulate

from reward_kit.agent.providers import Gate
from reward_kit.agent.providers.blame import Blame
from reward_kit.agent.providers.caller import Caller, asking
from reward_kit.agent.providers.visit import Visit
from reward_kit.errors import ModelError, ProviderDownError

ATTEMPTS = 4
"""How often a rollout is played that fails, with the usual retries."""
OWN_FAULTS = [
    refused(500),
    ModelError("closed the connection", retryable=True, no_answer="broken off"),
    ModelError("no answer within 5 s", retryable=True, no_answer="time"),
    ModelError("the answer cannot be read", retryable=True),
]


class Evaluation:
    """Rollouts of four calls each, of which those in ``bad`` always get ``fault``; each row has some."""

    def __init__(self, bad: set[int], fault: ModelError, *, per_row: int = 1, **options: Any) -> None:
        self.told: list[str] = []
        self.gate = Gate("stub at home", **{"ceiling": 10, "tell": self.told.append, **options})
        self.good = Provider(latency=0.1)
        self.broken = Provider(verdict=lambda: fault)
        self.ended: dict[int, tuple[BaseException | None, float]] = {}
        self._bad = bad
        self._per_row = per_row

    async def play(self, count: int) -> None:
        begun = now()
        side_by_side = asyncio.Semaphore(10)

        async def one(number: int) -> None:
            async with side_by_side:
                with asking(Caller(number, f"row {number // self._per_row}")):
                    error = await self._rollout(self.broken if number in self._bad else self.good)
            self.ended[number] = error, now() - begun

        await asyncio.gather(*map(one, range(count)))

    async def _rollout(self, provider: Provider) -> ModelError | None:
        fault = None
        for attempt in range(ATTEMPTS):
            fault = await self._attempt(provider)
            if fault is None:
                break
            await asyncio.sleep(2.0**attempt)
        return fault

    async def _attempt(self, provider: Provider) -> ModelError | None:
        try:
            for _ in range(4):
                await provider.ask(self.gate)
        except ProviderDownError:
            raise
        except ModelError as error:
            return error
        return None

    @property
    def failed(self) -> set[int]:
        return {number for number, (error, _) in self.ended.items() if error is not None}

    def seconds_of_others(self) -> float:
        return max(at for number, (_, at) in self.ended.items() if number not in self._bad)


class TestRefused:
    @pytest.mark.parametrize("bad", [0, 20, 39])
    @pytest.mark.parametrize(
        "fault", [refused(), refused(retry_after=2.0), refused(503), refused(503, retry_after=5.0)]
    )
    @pytest.mark.parametrize("patience", [20.0, 900.0])
    def test_a_conversation_that_is_always_refused_holds_up_no_other(
        self, fault: ModelError, bad: int, patience: float
    ) -> None:
        evaluation = Evaluation({bad}, fault, patience=patience)
        simulate(evaluation.play(40))
        assert evaluation.failed == {bad}
        # 1.6 s at full speed; what the provider asks for is believed twice
        assert evaluation.seconds_of_others() <= 4.0 + 2 * ((fault.retry_after or 0.0) + 0.6)
        assert evaluation.ended[bad][1] <= 150.0 or bad == 39

    def test_two_of_them_do_not_either(self) -> None:
        evaluation = Evaluation({0, 7}, refused(retry_after=2.0))
        simulate(evaluation.play(40))
        assert evaluation.failed == {0, 7}
        assert evaluation.seconds_of_others() <= 20.0

    def test_one_that_is_refused_only_as_long_as_others_use_up_the_limit_is_played_after_them(self) -> None:
        evaluation = Evaluation({0}, refused(), ceiling=10)

        def busy() -> bool:
            return not evaluation.good.arrivals or evaluation.good.arrivals[-1] > now() - 5.0

        evaluation.broken.verdict = lambda: refused() if busy() else None
        simulate(evaluation.play(400))
        assert evaluation.failed == set()
        assert evaluation.seconds_of_others() < evaluation.ended[0][1]

    def test_one_that_is_alone_when_it_is_refused_for_ever_fails_when_patience_ends(self) -> None:
        async def main() -> float:
            evaluation = Evaluation({1}, refused(retry_after=3600.0), patience=100.0)
            await evaluation.play(1)
            begun = now()
            await evaluation.play(2)
            assert evaluation.failed == {1}
            return now() - begun

        assert 100.0 < simulate(main()) < 100.0 + ATTEMPTS * 4 * 66.0

    def test_one_that_is_suspected_without_reason_comes_through(self) -> None:
        for _ in range(4):
            provider = Provider(refusal_latency=0.02, verdict=SlidingLimit(1, 1.0))
            assert played(provider, 100, 30) < 1.4 * 3000.0

    def test_where_nobody_is_answered_nobody_is_suspected(self) -> None:
        evaluation = Evaluation(set(range(20)), refused(), patience=60.0)
        with pytest.raises(ProviderDownError):
            simulate(evaluation.play(20))


class TestBroken:
    @pytest.mark.parametrize("fault", OWN_FAULTS)
    @pytest.mark.parametrize("first_answers", [True, False])
    def test_the_last_rollout_fails_by_its_retries_where_it_breaks_the_server(
        self, fault: ModelError, first_answers: bool
    ) -> None:
        evaluation = Evaluation({11}, fault)
        if first_answers:
            simulate(evaluation.play(12))
            assert evaluation.failed == {11}
        else:
            evaluation = Evaluation({0}, fault)  # all others were played before the run was resumed
            simulate(evaluation.play(1))
            assert evaluation.failed == {0}
        assert evaluation.told == []
        assert len(evaluation.broken.arrivals) == ATTEMPTS * 4

    def test_so_do_the_rollouts_of_one_row(self) -> None:
        evaluation = Evaluation({36, 37, 38, 39}, refused(500), per_row=4)
        simulate(evaluation.play(40))
        assert evaluation.failed == {36, 37, 38, 39}
        assert evaluation.told == []

    @pytest.mark.parametrize("fault", OWN_FAULTS)
    def test_two_rollouts_of_different_rows_are_enough_to_see_that_a_server_is_down(
        self, fault: ModelError
    ) -> None:
        assert self.outage(fault, rollouts=2) == set()

    def test_without_a_connection_one_is_enough(self) -> None:
        assert self.outage(unreachable(), rollouts=1) == set()

    def outage(self, fault: ModelError, *, rollouts: int) -> set[int]:
        async def main() -> set[int]:
            evaluation = Evaluation(set(), fault)
            end = now() + 300.0
            evaluation.good.verdict = lambda: fault if end - 299.9 < now() < end else None
            await evaluation.play(rollouts)
            assert "answers again" in evaluation.told[-1]
            return evaluation.failed

        return simulate(main())


class TestSuspicion:
    def failures_until_suspected(self, others: Callable[[Blame], None], most: int = 50) -> int:
        blame = Blame()
        visit = Visit()
        visit.among = 1
        for number in range(1, most):
            blame.sent(visit)
            if blame.failed(visit, float(number)):
                return number
            others(blame)
        return most

    def test_one_that_fails_while_others_are_answered_is_suspected_soon(self) -> None:
        def others(blame: Blame) -> None:
            for _ in range(8):
                blame.answered(Visit(), 0.0)

        assert self.failures_until_suspected(others) == 2

    def test_where_others_fail_as_well_it_takes_more(self) -> None:
        def others(blame: Blame) -> None:
            for number in range(8):
                blame.answered(Visit(), 0.0) if number % 2 else blame.failed(Visit(), 0.0)

        assert 5 <= self.failures_until_suspected(others) <= 8

    def test_where_no_other_calls_nothing_is_known(self) -> None:
        assert self.failures_until_suspected(lambda blame: None) == 50

    def test_answers_to_calls_that_were_sent_before_say_nothing(self) -> None:
        blame = Blame()
        visit = Visit()
        visit.among = 10
        blame.sent(visit)
        for _ in range(9):
            blame.answered(Visit(), 0.0)
        assert not any(blame.failed(visit, 1.0) for _ in range(20))
