"""Refusals that have nothing to do with how many calls are made: simulated to the end, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from virtual_provider import Provider, SlidingLimit, WindowLimit, now, played, refused
from virtual_time import simulate

from reward_kit.agent.completion import Completion
from reward_kit.agent.model_clients.attempts import answered
from reward_kit.agent.providers import Gate
from reward_kit.agent.providers.chance import FAILED, FIRST_TRIAL, IN_A_ROW, Chance
from reward_kit.errors import ModelError


@pytest.mark.parametrize(("share", "seconds"), [(0.05, 0.012), (0.2, 0.04), (0.3, 0.06)])
def test_refusals_by_chance_cost_little_time(share: float, seconds: float) -> None:
    chance = random.Random(3)
    provider = Provider(latency=0.05, verdict=lambda: refused() if chance.random() < share else None)
    assert played(provider, 100, 40) <= 40 * provider.latency + seconds * 4000


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


def test_refusals_one_after_the_other_are_no_reason_for_a_trial() -> None:
    chance = Chance()
    assert not any(chance.heeded(isolated=number % 2 == 0) for number in range(100))
    assert [chance.heeded(isolated=True) for _ in range(FIRST_TRIAL)][-1]


def test_a_trial_ends_when_calls_are_refused_again_and_the_next_comes_later() -> None:
    chance = Chance()
    assert [chance.heeded(isolated=True) for _ in range(FIRST_TRIAL)].index(True) == FIRST_TRIAL - 1
    assert [chance.made_again(refused=1) for _ in range(FAILED)] == [False] * (FAILED - 1) + [True]
    assert [chance.heeded(isolated=True) for _ in range(3 * FIRST_TRIAL)].index(True) == 2 * FIRST_TRIAL - 1
    assert [chance.made_again(refused=times + 1) for times in range(IN_A_ROW)][-1]
