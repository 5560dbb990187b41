"""Refusals that have nothing to do with how many calls are made: simulated to the end, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from virtual_provider import Provider, SlidingLimit, WindowLimit, played, refused

from reward_kit.agent.providers.chance import FAILED, FIRST_TRIAL, IN_A_ROW, Chance


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
