"""Pass^k and Pass@k against their definition: every k-subset of the rollouts, counted one by one."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_kit.agent.metrics import (
    mean_estimates,
    pass_at_k,
    pass_power_k,
    pass_table,
    success_within_turns,
)

rollouts = st.lists(st.booleans(), min_size=1, max_size=9)


@given(rollouts)
@settings(deadline=None)
def test_both_equal_the_share_of_subsets(successes: list[bool]) -> None:
    n, c = len(successes), sum(successes)
    for k in range(1, n + 1):
        subsets = list(combinations(successes, k))
        assert pass_power_k(n, c, k) == pytest.approx(sum(map(all, subsets)) / len(subsets), abs=1e-12)
        assert pass_at_k(n, c, k) == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)


@given(rollouts)
def test_pass_power_falls_and_pass_at_rises_with_k(successes: list[bool]) -> None:
    n, c = len(successes), sum(successes)
    powers = [pass_power_k(n, c, k) for k in range(1, n + 1)]
    ats = [pass_at_k(n, c, k) for k in range(1, n + 1)]
    assert powers == sorted(powers, reverse=True)
    assert ats == sorted(ats)
    assert powers[0] == ats[0]


@given(st.lists(rollouts, max_size=6))
@settings(deadline=None, max_examples=40)
def test_the_table_equals_brute_force_over_tasks(tasks: list[list[bool]]) -> None:
    table = pass_table([(len(task), sum(task)) for task in tasks])
    assert sorted(table.pass_power) == list(range(1, max(map(len, tasks), default=0) + 1))
    for k, estimate in table.pass_power.items():
        counted = [task for task in tasks if len(task) >= k]
        shares = [sum(map(all, combinations(task, k))) / len(list(combinations(task, k))) for task in counted]
        assert estimate.value == pytest.approx(sum(shares) / len(shares), abs=1e-12)
        assert (estimate.tasks, estimate.left_out) == (len(counted), len(tasks) - len(counted))


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(0, 10)), min_size=2, max_size=8), st.integers(0, 5))
@settings(deadline=None, max_examples=25)
def test_an_interval_stays_within_the_values(vectors: list[tuple[float, float]], seed: int) -> None:
    for column, estimate in enumerate(mean_estimates(vectors, seed=seed, draws=50)):
        values = [vector[column] for vector in vectors]
        assert estimate.interval is not None
        assert min(values) - 1e-9 <= estimate.interval.low <= estimate.interval.high <= max(values) + 1e-9


@given(st.lists(st.lists(st.none() | st.integers(1, 9), max_size=6), max_size=5))
@settings(deadline=None)
def test_success_within_turns_equals_counting_rollout_by_rollout(tasks: list[list[int | None]]) -> None:
    """A rollout is the turn in which it succeeded, or None."""
    shares = success_within_turns([(len(task), [turn for turn in task if turn]) for task in tasks])
    judged = [task for task in tasks if task]
    latest = max((turn for task in tasks for turn in task if turn), default=0)
    assert list(shares) == list(range(1, latest + 1))
    for k, share in shares.items():
        per_task = [sum(turn is not None and turn <= k for turn in task) / len(task) for task in judged]
        assert share == pytest.approx(sum(per_task) / len(judged), abs=1e-12)
    assert list(shares.values()) == sorted(shares.values())
    if shares:
        table = pass_table([(len(task), sum(turn is not None for turn in task)) for task in tasks])
        assert shares[latest] == pytest.approx(table.pass_power[1].value, abs=1e-12)
