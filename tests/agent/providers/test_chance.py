"""Refusals that have nothing to do with how many calls are made: simulated to the end, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from virtual_provider import (
    Provider,
    SlidingLimit,
    WindowLimit,
    answer,
    now,
    played,
    refused,
    rollouts,
)
from virtual_time import simulate

from reward_kit.agent.completion import Completion
from reward_kit.agent.model_clients.attempts import answered
from reward_kit.agent.providers import Gate, Visit
from reward_kit.agent.providers.chance import Chance
from reward_kit.agent.providers.concurrency import Concurrency
from reward_kit.agent.providers.spacing import Spacing
from reward_kit.agent.providers.trial import FAILED, IN_A_ROW, Trial
from reward_kit.errors import ModelError


@pytest.mark.parametrize("latency", [0.05, 1.0])
@pytest.mark.parametrize("share", [0.02, 0.05, 0.2, 0.3, 0.4])
def test_refusals_by_chance_cost_little_time(share: float, latency: float) -> None:
    chance = random.Random(3)
    provider = Provider(latency=latency, verdict=lambda: refused() if chance.random() < share else None)
    assert played(provider, 100, 40) <= 1.7 * 40 * latency / (1 - share) + 15.0


@pytest.mark.parametrize(
    "limit",
    [
        lambda: WindowLimit(60, 60.0, say_when=False),
        lambda: WindowLimit(100, 10.0, say_when=False),
        lambda: SlidingLimit(1, 1.0),
        lambda: SlidingLimit(600, 60.0),
    ],
)
@pytest.mark.parametrize("latency", [0.05, 0.5])
def test_a_limit_is_not_taken_for_chance(limit: Callable[[], Any], latency: float) -> None:
    provider = Provider(latency=latency, verdict=limit(), refusal_latency=0.1)
    played(provider, 20, 30)
    assert provider.refusals <= 0.9 * len(provider.accepted)


def test_calls_at_once_that_are_limited_are_not_taken_for_chance() -> None:
    provider = Provider(latency=0.5)
    provider.verdict = lambda: refused() if provider.under_way > 10 else None
    played(provider, 50, 100)
    assert provider.refusals <= 0.05 * len(provider.accepted)


@pytest.mark.parametrize(("share", "latency", "most"), [(0.03, 0.05, 4.0), (0.1, 0.05, 5.0), (0.1, 1.0, 2.0)])
def test_calls_that_are_told_to_wait_by_chance_wait_alone(share: float, latency: float, most: float) -> None:
    """Where each refusal holds up all calls for its second, these take 19 to 42 times that time."""
    chance = random.Random(3)
    told = lambda: refused(retry_after=1.0) if chance.random() < share else None  # noqa: E731
    provider = Provider(latency=latency, verdict=told)
    own_waits = 100 * share * 1.1  # of the calls that each rollout makes one after the other
    assert played(provider, 50, 100) <= most * (100 * latency + own_waits)


@pytest.mark.parametrize("rollouts", [5, 50])
def test_no_call_comes_before_the_time_that_it_was_told(rollouts: int) -> None:
    """Also while others go on."""
    chance = random.Random(5)
    provider = Provider(latency=0.05)
    gate = Gate("stub", ceiling=rollouts)

    async def ask() -> None:
        told_at: list[float] = []

        async def attempt() -> Completion | ModelError:
            if told_at:
                assert now() >= told_at[-1] + 2.0
            provider.verdict = lambda: refused(retry_after=2.0) if chance.random() < 0.1 else None
            answer = await provider.attempt(gate)
            if isinstance(answer, ModelError):
                told_at.append(now())
            return answer

        await answered(attempt, retries=3, backoff=1.0, gate=gate)

    async def rollout() -> None:
        for _ in range(60):
            await ask()

    async def all_of_them() -> None:
        await asyncio.gather(*(rollout() for _ in range(rollouts)))

    simulate(all_of_them())
    assert len(provider.accepted) == 60 * rollouts


@pytest.mark.parametrize(
    "limit", [lambda: WindowLimit(60, 60.0), lambda: WindowLimit(100, 10.0), lambda: WindowLimit(7, 3.0)]
)
@pytest.mark.parametrize("rollouts", [5, 50])
def test_where_a_limit_says_when_nobody_asks_before(limit: Callable[[], Any], rollouts: int) -> None:
    """But for those that were under way when it was reached."""
    provider = Provider(latency=0.05, verdict=limit())
    played(provider, rollouts, 1500 // rollouts)
    windows = len({int(moment // (provider.verdict.seconds)) for moment in provider.accepted})  # type: ignore[attr-defined]
    assert provider.refusals <= windows * min(rollouts, 16)


@pytest.mark.parametrize("latency", [0.05, 1.0])
@pytest.mark.parametrize("every", [2, 3, 10])
def test_each_so_many_th_call_that_is_refused_costs_little_time(every: int, latency: float) -> None:
    """Whatever comes of those that are made again: with 3 and 1 s this took 70 times as long as it had to."""
    numbers = itertools.count(1)
    provider = Provider(latency=latency, verdict=lambda: None if next(numbers) % every else refused())
    assert played(provider, 50, 20) <= 2.0 * 20 * latency / (1 - 1 / every) + 15.0


def test_a_limit_that_names_short_times_is_not_taken_for_one_call_at_once() -> None:
    """20 a second, one by one: each 50 ms. That used to end with one call in the time of an answer."""
    limit = SlidingLimit(1, 0.05)
    provider = Provider(latency=2.0, verdict=lambda: limit() and refused(retry_after=limit.wait))
    assert played(provider, 100, 20) <= 1.8 * 2000 * 0.05
    assert provider.refusals <= 0.1 * len(provider.accepted)


def test_a_call_that_is_sent_ahead_keeps_to_the_hard_limits() -> None:
    chance = random.Random(7)
    provider = Provider(latency=0.05, verdict=lambda: refused() if chance.random() < 0.3 else None)

    async def main() -> None:
        gate = Gate("stub", ceiling=20, rpm=120)
        assert await rollouts(provider, gate, 20, 10) == [None] * 20

    simulate(main())
    assert provider.most_within(60.0) <= 120


@pytest.mark.parametrize("fault", [refused(500), refused(400), None])
def test_one_sent_ahead_that_tells_nothing_is_forgotten(fault: ModelError | None) -> None:
    """One that fails in another way, or is cancelled."""

    async def main() -> None:
        gate = Gate("stub", ceiling=4)
        first, second = Visit(), Visit()
        await gate.enter(first)
        await asyncio.sleep(1.0)
        gate.left(first, answer())
        await gate.enter(second)
        assert gate.failed(second, refused())
        assert second.ahead
        await asyncio.wait_for(gate.enter(second), 0.001)  # at once, though all others wait
        assert not second.ahead
        if fault is None:
            gate.left(second)
        else:
            gate.failed(second, fault)
        await gate.enter(first)
        gate.failed(first, refused())
        assert first.ahead  # its place is free again

    simulate(main())


def weighed(*refusals: tuple[int, int], told: bool = False) -> Chance:
    """After refusals: calls let through before each, and under way."""
    chance = Chance()
    for passed, under_way in refusals:
        chance.refused(passed, under_way, told=told)
    return chance


def test_far_fewer_calls_than_before_with_fewer_under_way_speak_for_chance() -> None:
    assert weighed((40, 20), (50, 10), (3, 5), (4, 4)).likely
    assert not weighed((40, 20), (50, 10), (3, 5)).likely
    assert not weighed((40, 20), (50, 19), (3, 19), (4, 18)).likely  # still too many, it may be
    assert not weighed(*[(40, 20), (30, 10)] * 50).likely
    assert not weighed(*[(60, 20), (0, 1), (0, 1)] * 50).likely  # a window that is used up


def test_a_refusal_that_no_limit_explains_speaks_for_chance() -> None:
    chance = Chance()
    chance.refused(10, 1, told=False, odd=True)
    assert not chance.likely
    chance.refused(10, 1, told=False, odd=True)
    assert chance.likely


def test_where_a_time_is_named_once_is_enough_from_the_third_on() -> None:
    assert weighed((40, 20), (50, 20), (3, 20), told=True).likely
    assert not weighed((50, 20), (3, 20), told=True).likely


def test_a_call_made_again_at_once_tells_the_more_the_less_room_there_can_be() -> None:
    def needed(room: float) -> int:
        chance = Chance()
        for count in itertools.count(1):
            chance.asked_again(room, refused=False)
            if chance.likely:
                return count
        raise AssertionError

    assert [needed(room) for room in (0.05, 0.2, 1.0)] == [2, 4, 30]
    chance = Chance()
    for number in range(100):  # passes as often as room is made in the meantime
        chance.asked_again(0.2, refused=number % 5 > 0)
        assert not chance.likely


def test_a_trial_that_failed_soon_takes_twice_as_much_to_repeat() -> None:
    def needed(chance: Chance) -> int:
        for count in itertools.count(1):
            chance.missed(single=True)
            if chance.likely:
                return count
        raise AssertionError

    chance = Chance()
    assert needed(chance) == 12
    chance.refuted(soon=True)
    assert needed(chance) == 23
    chance.refuted(soon=False)
    assert needed(chance) == 12
    chance.refuted(soon=False)
    for number in range(100):
        chance.missed(single=number % 2 == 0)  # an overloaded server
        assert not chance.likely


def test_a_trial_ends_when_most_calls_are_refused_that_were_sent_one_after_the_other() -> None:
    trial = Trial(Concurrency(100), Spacing())
    for _ in range(12):
        trial.missed(single=True)
    assert trial.on
    calls = [Visit() for _ in range(FAILED + 8)]
    for call in calls:
        trial.sent(call)
    assert [trial.excuses(call, refused(), 0.0) for call in calls[4:-5]] == [True] * (FAILED - 1)
    assert trial.on  # those before, of which nothing is known yet, may have been let through
    assert not trial.excuses(calls[-5], refused(), 0.0)
    assert not trial.on


def test_in_a_trial_a_call_that_got_no_answer_in_time_does_not_wait_for_as_long_again() -> None:
    trial = Trial(Concurrency(100), Spacing())
    for _ in range(12):
        trial.missed(single=True)
    late = ModelError("no answer within 60 s", retryable=True, no_answer="time")
    for _ in range(20):
        call = Visit()
        assert trial.excuses(call, late, 60.0)
        assert 60.0 <= call.not_before <= 60.5
        trial.answered(call)


def test_a_trial_ends_when_one_call_is_refused_again_and_again() -> None:
    trial = Trial(Concurrency(100), Spacing())
    for _ in range(12):
        trial.missed(single=True)
    call = Visit()
    for number in range(40):
        trial.sent(Visit() if number % 3 else call)
    assert [trial.excuses(call, refused(), 0.0) for _ in range(IN_A_ROW + 1)] == [True] * IN_A_ROW + [False]
