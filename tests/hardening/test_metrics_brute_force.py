"""The numbers beside Pass^k against their definitions; Pass^k itself is in ``test_metrics_property.py``."""

from __future__ import annotations

import math
import statistics
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_kit.agent.metrics import (
    SUCCESS_THRESHOLD,
    is_success,
    mean,
    mean_estimates,
    pass_table,
    percentile,
)

NUMBERS = st.floats(-1e6, 1e6)
TASKS = st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=5)


@given(st.lists(NUMBERS, min_size=2, max_size=30))
def test_percentiles_are_those_of_the_standard_library(values: list[float]) -> None:
    expected = statistics.quantiles(values, n=100, method="inclusive")
    for percent, value in enumerate(expected, start=1):
        assert percentile(values, percent) == pytest.approx(value, rel=1e-9, abs=1e-6)
    assert (percentile(values, 0), percentile(values, 100)) == (min(values), max(values))


@given(st.lists(NUMBERS, max_size=30))
def test_the_mean_is_the_sum_over_the_number(values: list[float]) -> None:
    assert mean(values) == (pytest.approx(math.fsum(values) / len(values)) if values else None)


@given(TASKS)
@settings(deadline=None, max_examples=30)
def test_the_score_is_the_mean_of_the_first_four_counted_by_hand(tasks: list[list[bool]]) -> None:
    powers = []
    for k in (1, 2, 3, 4):
        counted = [task for task in tasks if len(task) >= k]
        if counted:
            shares = [statistics.mean(map(all, combinations(task, k))) for task in counted]
            powers.append(statistics.mean(map(float, shares)))
    table = pass_table([(len(task), sum(task)) for task in tasks])
    assert table.score == pytest.approx(statistics.mean(powers), abs=1e-12)


@given(TASKS, st.integers(0, 99))
@settings(deadline=None, max_examples=20)
def test_an_interval_is_the_same_for_the_same_seed_and_holds_the_middle(
    tasks: list[list[bool]], seed: int
) -> None:
    counts = [(len(task), sum(task)) for task in tasks]
    table = pass_table(counts, seed=seed)
    assert table == pass_table(counts, seed=seed)
    for estimate in (*table.pass_power.values(), *table.pass_at.values()):
        assert (estimate.interval is None) == (estimate.tasks < 2)
        if estimate.interval is not None:
            assert 0 <= estimate.interval.low <= estimate.interval.high <= 1


@given(st.tuples(NUMBERS, NUMBERS), st.integers(0, 999))
@settings(deadline=None, max_examples=30)
def test_an_interval_of_two_tasks_is_that_of_all_their_resamples(
    values: tuple[float, float], seed: int
) -> None:
    every = [statistics.fmean(drawn) for drawn in product(values, repeat=2)] * 250
    (estimate,) = mean_estimates([(value,) for value in values], seed=seed)
    assert estimate.interval is not None
    assert estimate.interval.low == pytest.approx(percentile(every, 2.5), rel=1e-9, abs=1e-6)
    assert estimate.interval.high == pytest.approx(percentile(every, 97.5), rel=1e-9, abs=1e-6)


@given(st.floats(allow_nan=False))
def test_a_success_is_a_reward_of_one_up_to_rounding(reward: float) -> None:
    assert is_success(reward) == (reward >= 1 - 1e-6)
    assert is_success(SUCCESS_THRESHOLD)
    assert is_success(0.1 + 0.2 + 0.7)
    assert not is_success(math.nextafter(SUCCESS_THRESHOLD, 0))
