"""Pass^k, Pass@k and their intervals on cases worked out by hand."""

from __future__ import annotations

import math
import sys

import pytest

from reward_kit.agent.metrics import (
    Estimate,
    Interval,
    is_success,
    mean,
    mean_estimates,
    pass_at_k,
    pass_power_k,
    pass_table,
    percentile,
    shown_ks,
    success_within_turns,
)


def test_two_successes_of_four() -> None:
    assert [pass_power_k(4, 2, k) for k in (1, 2, 3, 4)] == [0.5, 1 / 6, 0.0, 0.0]
    assert [pass_at_k(4, 2, k) for k in (1, 2, 3, 4)] == [0.5, 5 / 6, 1.0, 1.0]


def test_all_and_none_successful() -> None:
    for k in (1, 2, 3):
        assert pass_power_k(3, 3, k) == pass_at_k(3, 3, k) == 1.0
        assert pass_power_k(3, 0, k) == pass_at_k(3, 0, k) == 0.0


def test_large_counts_stay_exact() -> None:
    assert pass_power_k(2000, 1999, 1000) == 0.5
    assert pass_at_k(2000, 1, 1000) == 0.5


@pytest.mark.parametrize(("n", "c", "k"), [(4, 5, 1), (4, -1, 1), (4, 2, 0), (4, 2, 5), (0, 0, 1)])
def test_impossible_counts_are_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="no such draw"):
        pass_power_k(n, c, k)
    with pytest.raises(ValueError, match="no such draw"):
        pass_at_k(n, c, k)


def test_a_success_is_a_reward_of_one_up_to_float_noise() -> None:
    assert is_success(1.0)
    assert is_success(0.1 * 3 + 0.7)
    assert is_success(1 - 1e-6)
    assert not is_success(1 - 2e-6)
    assert not is_success(0.99)


def test_table_is_the_mean_over_tasks_and_the_score_the_mean_of_the_first_four() -> None:
    table = pass_table([(4, 4), (4, 2), (4, 0), (4, 1)])
    assert table.pass_power[1].value == pytest.approx((1 + 0.5 + 0 + 0.25) / 4)
    assert table.pass_power[2].value == pytest.approx((1 + 1 / 6) / 4)
    assert table.pass_power[4].value == 0.25
    assert table.pass_at[4].value == 0.75
    assert table.score == pytest.approx(math.fsum(table.pass_power[k].value for k in (1, 2, 3, 4)) / 4)


def test_the_score_counts_only_the_first_four_and_only_those_that_exist() -> None:
    assert pass_table([(2, 1)]).score == pytest.approx((0.5 + 0) / 2)
    assert pass_table([(8, 4)]).score == pytest.approx(
        math.fsum(pass_power_k(8, 4, k) for k in (1, 2, 3, 4)) / 4
    )
    assert pass_table([]).score is None
    assert pass_table([(0, 0)]).score is None


def test_tasks_with_too_few_rollouts_are_left_out_and_counted() -> None:
    table = pass_table([(4, 4), (2, 0), (0, 0)])
    assert (table.pass_power[1].tasks, table.pass_power[1].left_out) == (2, 1)
    assert table.pass_power[1].value == 0.5
    assert (table.pass_power[3].tasks, table.pass_power[3].left_out) == (1, 2)
    assert table.pass_power[3].value == 1.0
    assert max(table.pass_power) == 4


def test_the_interval_holds_the_value_and_repeats_with_the_seed() -> None:
    counts = [(4, successes) for successes in (0, 1, 2, 3, 4, 4, 4, 2)]
    first = pass_table(counts, seed=3)
    for table in (first.pass_power, first.pass_at):
        for estimate in table.values():
            assert estimate.interval is not None
            assert 0 <= estimate.interval.low <= estimate.value <= estimate.interval.high <= 1
    assert pass_table(counts, seed=3) == first
    assert pass_table(counts, seed=4) != first


def test_the_interval_matches_the_exact_distribution_of_a_coin() -> None:
    """With 100 tasks, half of them solved, the means are binomial(100, 1/2) / 100: 95 % in 0.4 to 0.6."""
    (estimate,) = mean_estimates([(1.0,)] * 50 + [(0.0,)] * 50)
    assert estimate.interval is not None
    assert estimate.interval.low == pytest.approx(0.40, abs=0.015)
    assert estimate.interval.high == pytest.approx(0.60, abs=0.015)


def test_one_task_has_no_interval_and_equal_tasks_a_closed_one() -> None:
    assert pass_table([(4, 2)]).pass_power[1].interval is None
    assert pass_table([(4, 2), (4, 2)]).pass_power[1].interval == Interval(0.5, 0.5)


def test_percentile_lies_linearly_between_neighbours() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([1.0, 2.0], 25) == 1.25
    assert percentile([7.0], 99) == 7.0
    assert percentile([1.0, 5.0], 100) == 5.0
    with pytest.raises(ValueError):
        percentile([], 50)


@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_whose_sum_is_none_have_a_mean(sign: int) -> None:
    """A reward is any finite number."""
    most = sign * sys.float_info.max
    assert mean([most] * 3) == most
    assert mean([most, -most]) == 0
    (estimate,) = mean_estimates([(most,)] * 3 + [(-most,)])
    assert estimate.value == pytest.approx(most / 2)
    assert estimate.interval is not None
    assert -abs(most) <= estimate.interval.low < estimate.value < estimate.interval.high <= abs(most)
    assert mean_estimates([(most,)] * 3)[0] == Estimate(most, Interval(most, most), 3)


def test_mean_of_nothing_is_none() -> None:
    assert mean([]) is None
    assert mean([1, 2]) == 1.5


def test_success_within_turns_is_averaged_per_task_first() -> None:
    assert success_within_turns([(4, [1, 3]), (1, [2]), (2, []), (0, [])]) == {
        1: pytest.approx((1 / 4) / 3),
        2: pytest.approx((1 / 4 + 1) / 3),
        3: pytest.approx((2 / 4 + 1) / 3),
    }
    assert success_within_turns([(3, []), (0, [])]) == {}


def test_of_many_ks_the_first_the_powers_of_two_and_the_last_are_shown() -> None:
    assert shown_ks(21) == [1, 2, 3, 4, 8, 16, 21]
    assert shown_ks(2) == [1, 2]
    assert shown_ks(0) == []
