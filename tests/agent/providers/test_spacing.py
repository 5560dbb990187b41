"""Calls that are spread over the time of an answer, where a provider refuses some and names no time."""

from __future__ import annotations

import pytest
from virtual_provider import Provider, SlidingLimit, WindowLimit, played, refused

from reward_kit.agent.providers.spacing import BRIEF, SPREAD, Spacing


@pytest.mark.parametrize("rollouts", [3, 20])
@pytest.mark.parametrize("limit", [SlidingLimit, lambda *limit: WindowLimit(*limit, say_when=False)])
def test_one_call_a_second_is_not_taken_for_one_at_once(rollouts: int, limit: type[SlidingLimit]) -> None:
    provider = Provider(latency=3.0, verdict=limit(1, 1.0))
    assert played(provider, rollouts, 120 // rollouts) <= 1.7 * 120
    assert provider.refusals <= 0.3 * len(provider.accepted)


def test_a_crowd_that_a_limit_has_refused_does_not_come_back_together() -> None:
    provider = Provider(latency=0.5, verdict=WindowLimit(100, 10.0, say_when=False))
    assert played(provider, 100, 15) <= 1.3 * 150


INFINITE = float("inf")


def just_sent(spacing: Spacing) -> float:
    """A moment at which a call has just set out."""
    spacing.sent(110.0)
    return 110.0


def refused_once(told: float) -> Spacing:
    spacing = Spacing()
    for _ in range(20):
        spacing.answered(2.0)
    spacing.refused(100.0, 20, alone=False, told=told)
    spacing.sent(100.0)
    return spacing


def test_calls_are_spread_over_the_time_that_answers_take() -> None:
    spacing = refused_once(told=0.0)
    assert spacing.wait(100.0, 4.0) == pytest.approx(SPREAD * 2.0 / 4)
    assert spacing.wait(101.9, 4.0) < 0
    assert spacing.wait(100.0, SPREAD * 2.0 / BRIEF + 1) == 0
    assert spacing.wait(100.0, float("inf")) == 0  # nobody to keep away from


def test_nothing_is_spread_where_a_time_was_named() -> None:
    assert refused_once(told=1.0).wait(100.0, 4.0) == 0
    assert refused_once(told=0.05).wait(100.0, 4.0) > 0  # one by one, so far apart


def test_the_time_of_answers_is_that_of_late() -> None:
    spacing = refused_once(told=0.0)
    for _ in range(60):
        spacing.answered(0.5)
    assert spacing.wait(100.0, 1.0) == pytest.approx(SPREAD * 0.5, rel=0.01)


def ten_a_second() -> Spacing:
    spacing = Spacing()
    assert not spacing.refused(100.0, 5, alone=False, told=0.0)
    assert not spacing.refused(101.0, 10, alone=False, told=0.0)
    return spacing


def test_one_call_refused_alone_after_another_tells_how_far_apart_they_have_to_be() -> None:
    spacing = ten_a_second()
    assert not spacing.refused(101.2, 1, alone=True, told=0.0)
    assert spacing.wait(just_sent(spacing), INFINITE) == pytest.approx(1.1 * 0.2)


def test_it_tells_nothing_where_calls_were_let_through_far_more_often_lately() -> None:
    spacing = ten_a_second()
    assert spacing.refused(103.0, 1, alone=True, told=0.0)
    assert spacing.wait(just_sent(spacing), INFINITE) == 0


def test_after_a_trial_that_failed_it_tells_all_the_same() -> None:
    spacing = ten_a_second()
    spacing.resume()
    assert not spacing.refused(103.0, 1, alone=True, told=0.0)
    assert not spacing.refused(105.0, 1, alone=True, told=0.0)
    assert spacing.wait(just_sent(spacing), INFINITE) == pytest.approx(1.1 * 2.0)


def test_a_limit_that_becomes_a_fiftieth_is_kept_soon() -> None:
    provider = Provider(latency=0.2)
    many, few = SlidingLimit(50, 1.0), SlidingLimit(1, 1.0)
    provider.verdict = lambda: many() if len(provider.accepted) < 500 else few()
    assert played(provider, 20, 40) <= 1.4 * (10.0 + 300.0)
    assert provider.refusals <= 0.4 * len(provider.accepted)


def test_calls_at_once_are_not_slowed_by_being_spread() -> None:
    provider = Provider(latency=2.0)
    provider.verdict = lambda: refused() if provider.under_way > 5 else None
    assert played(provider, 20, 20) <= 1.15 * 400 * 2.0 / 5


@pytest.mark.parametrize("rate", [1.0, 3.0])
def test_a_limit_of_one_call_at_a_time_that_names_its_times_refuses_few(rate: float) -> None:
    """Each answer used to let two calls go, of which both were refused and told to wait again."""
    limit = SlidingLimit(1, 1 / rate)
    provider = Provider(latency=0.05, verdict=lambda: limit() and refused(retry_after=limit.wait))
    assert played(provider, 20, 10) <= 1.3 * 200 / rate
    assert provider.refusals <= 0.2 * len(provider.accepted)
