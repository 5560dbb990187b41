"""Intervals for these tasks where rows have different numbers of rollouts."""

import random

from reward_kit.agent.scoring.intervals import RowCounts, mean_intervals
from reward_kit.agent.scoring.sequential import RowRates


def test_pass_1_is_held_where_hard_rows_have_fewer_rollouts() -> None:
    chance, held = random.Random(1), 0
    for _ in range(200):
        counts = [(4, 4)] * 10 + [(1, int(chance.random() < 0.5)) for _ in range(10)]
        interval = RowCounts(counts).these_tasks(1)
        held += interval.low <= 0.75 <= interval.high
    assert held >= 175  # it was 24 % with one prior for all rows


def test_means_are_held_where_noisy_rows_have_fewer_values() -> None:
    chance, held = random.Random(5), 0
    for _ in range(200):
        rows = [[0.5] * 16] * 10 + [[chance.choice([0.0, 0.5, 1.0]) for _ in range(2)] for _ in range(10)]
        interval = mean_intervals(rows).these_tasks
        held += interval is not None and interval.low <= 0.5 <= interval.high
    assert held >= 175  # it was 38 % with one variance for all rows


def test_means_are_held_where_one_row_alone_is_noisy() -> None:
    chance, held, draws = random.Random(3), 0, 200
    for _ in range(draws):
        rows = [[chance.random(), chance.random()], *[[0.5, 0.5]] * 9]
        interval = mean_intervals(rows).these_tasks
        held += interval is not None and interval.low <= 0.5 <= interval.high
    assert held >= 0.87 * draws  # it was 70 % with the degrees of freedom of all rows


def test_means_are_held_where_most_rows_have_one_value() -> None:
    chance, held = random.Random(4), 0
    for _ in range(200):
        rows = [[chance.random(), chance.random()], *([chance.random()] for _ in range(49))]
        interval = mean_intervals(rows).these_tasks
        held += interval is not None and interval.low <= 0.5 <= interval.high
    assert held >= 180
    assert mean_intervals([[1e-90, 2e-90], [3e-90, 3e-90]]).these_tasks is not None


def test_one_rollout_does_not_tell_the_rates_of_rows() -> None:
    steady, even = RowRates(0.5, 0.45), RowRates(0.5, 0.0)
    assert steady.smallest_difference(40, 1, 0.8)[0] == even.smallest_difference(40, 1, 0.8)[0]
    assert steady.smallest_margin(115, 1, 0.8) == even.smallest_margin(115, 1, 0.8)
    several = [rates.smallest_difference(40, 2, 0.8)[0] or 1.0 for rates in (steady, even)]
    assert several[0] < several[1]
