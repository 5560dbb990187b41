"""Pass^k, Pass@k, and means, by hand and against brute force."""

import math
import statistics
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import often

from reward_kit.agent.rollout.outcome import SUCCESS_THRESHOLD, is_success
from reward_kit.agent.scoring import metrics
from reward_kit.agent.scoring.intervals import RowCounts
from reward_kit.agent.scoring.metrics import (
    mean,
    pass_curves,
    pass_table,
    percentile,
    shown_ks,
    success_within_turns,
)

ROLLOUTS = st.lists(st.booleans(), min_size=1, max_size=7)
TASKS = st.lists(ROLLOUTS, min_size=1, max_size=6)
NUMBERS = st.floats(-1e6, 1e6)


def test_two_successes_of_four_and_large_counts_are_exact() -> None:
    assert pass_curves(4, 2) == [(0.5, 0.5), (1 / 6, 5 / 6), (0.0, 1.0), (0.0, 1.0)]
    assert pass_curves(2000, 1999)[999][0] == pass_curves(2000, 1)[999][1] == 0.5


def test_a_success_is_a_reward_of_one_up_to_rounding() -> None:
    assert is_success(SUCCESS_THRESHOLD)
    assert is_success(0.1 + 0.2 + 0.7)
    assert not is_success(math.nextafter(SUCCESS_THRESHOLD, 0))


@given(ROLLOUTS)
def test_both_are_shares_of_subsets(successes: list[bool]) -> None:
    n, c = len(successes), sum(successes)
    for k, (power, at) in enumerate(pass_curves(n, c), start=1):
        subsets = list(combinations(successes, k))
        assert power == pytest.approx(sum(map(all, subsets)) / len(subsets), abs=1e-12)
        assert at == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


@given(TASKS)
@settings(max_examples=often(40))
def test_the_table_equals_brute_force_over_tasks(tasks: list[list[bool]]) -> None:
    counts = [(len(task), sum(task)) for task in tasks]
    table = pass_table(counts)
    assert table == pass_table(counts)
    assert sorted(table.pass_power) == list(range(1, max(map(len, tasks)) + 1))
    means = []
    for k, estimate in table.pass_power.items():
        counted = [task for task in tasks if len(task) >= k]
        means.append(statistics.mean(statistics.mean(map(all, combinations(task, k))) for task in counted))
        assert estimate.value == pytest.approx(means[-1], abs=1e-12)
        assert (estimate.tasks, estimate.left_out) == (len(counted), len(tasks) - len(counted))
        assert estimate.intervals == RowCounts(counts).intervals(k)
    assert table.score == pytest.approx(statistics.mean(means[:4]), abs=1e-12)


def test_nothing_judged_has_no_score() -> None:
    assert pass_table([]).score is None
    assert pass_table([(0, 0)]).score is None
    assert pass_table([(8, 4)]).score == pytest.approx(sum(power for power, _ in pass_curves(8, 4)[:4]) / 4)


@given(st.lists(NUMBERS, min_size=2, max_size=30))
def test_percentiles_and_means_are_those_of_the_standard_library(values: list[float]) -> None:
    for percent, value in enumerate(statistics.quantiles(values, n=100, method="inclusive"), start=1):
        assert percentile(values, percent) == pytest.approx(value, rel=1e-9, abs=1e-6)
    assert (percentile(values, 0), percentile(values, 100)) == (min(values), max(values))
    assert mean(values) == pytest.approx(statistics.fmean(values))
    assert mean([]) is None


@given(st.lists(st.lists(st.none() | st.integers(1, 9), max_size=6), max_size=5))
def test_success_within_turns_equals_counting_rollout_by_rollout(tasks: list[list[int | None]]) -> None:
    """A rollout is the turn in which it succeeded, or None."""
    shares = success_within_turns([(len(task), [turn for turn in task if turn]) for task in tasks])
    judged = [task for task in tasks if task]
    latest = max((turn for task in tasks for turn in task if turn), default=0)
    assert list(shares) == list(range(1, latest + 1))
    for k, share in shares.items():
        per_task = [sum(turn is not None and turn <= k for turn in task) / len(task) for task in judged]
        assert share == pytest.approx(statistics.fmean(per_task), abs=1e-12)
    if shares:
        table = pass_table([(len(task), sum(turn is not None for turn in task)) for task in tasks])
        assert shares[latest] == pytest.approx(table.pass_power[1].value, abs=1e-12)


def test_tables_show_the_first_ks_the_powers_of_two_and_the_last() -> None:
    assert shown_ks(21) == [1, 2, 3, 4, 8, 16, 21]
    assert shown_ks(2) == [1, 2]
    assert shown_ks(0) == []


def test_each_curve_of_a_table_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def counted(n: int, c: int) -> object:
        computed.append((n, c))
        return pass_curves.__wrapped__(n, c)

    monkeypatch.setattr(metrics, "pass_curves", counted)
    counts = [(30, c) for c in range(30)] * 2
    assert len(pass_table(counts).pass_power) == 30
    assert sorted(computed) == sorted(set(counts))
