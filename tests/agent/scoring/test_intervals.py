"""Intervals for these tasks and for tasks like these: limits, coverage, symmetry, and the quantiles below."""

import math
import random
import runpy
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thorough import often

from reward_kit.agent.scoring.intervals import (
    Interval,
    Intervals,
    RowCounts,
    beta_cdf,
    beta_quantile,
    difference_intervals,
    mean_intervals,
    student_t,
)
from reward_kit.agent.scoring.metrics import intervals_of_means

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "interval_coverage.py"
Count = tuple[int, int]
COUNT = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))
COUNTS = st.lists(COUNT, min_size=1, max_size=9)
PAIRS = st.lists(st.tuples(COUNT, COUNT), min_size=1, max_size=9)


def flipped(interval: Interval | None, center: float) -> Interval | None:
    return interval and Interval(2 * center - interval.high, 2 * center - interval.low)


def near(one: Interval | None, other: Interval | None) -> bool:
    return one is other is None or one == pytest.approx(other, abs=1e-6)


@given(COUNTS, st.integers(1, 4), st.booleans())
def test_an_interval_holds_the_estimate_has_a_width_and_stays_in_0_to_1(counts: Any, k: int, at: Any) -> None:
    kept = [(n, n - c if at else c) for n, c in counts if n >= k]
    these, like = RowCounts(counts).intervals(k, at=at)
    assert (these is None, like is None) == (len(kept) < 1, len(kept) < 2)
    if these is not None:
        power = statistics.fmean(math.comb(c, k) / math.comb(n, k) for n, c in kept)
        value = 1 - power if at else power
        for one in filter(None, (these, like)):
            assert 0 <= one.low <= value + 1e-12
            assert value - 1e-12 <= one.high <= 1
            assert one.high - one.low > 0.001
    first = RowCounts(counts).intervals(1, at=at).these_tasks
    if these is not None and first is not None and len(kept) == len(counts):
        assert these.low >= first.low if at else these.high <= first.high
    if these is not None and like is not None:
        assert like.low <= these.low < these.high <= like.high


@given(PAIRS, st.integers(1, 4))
def test_a_difference_has_a_width_and_turns_its_sign_with_the_sides(pairs: Any, k: int) -> None:
    found = difference_intervals(pairs, k)
    turned = difference_intervals([(b, a) for a, b in pairs], k)
    for one, other in zip(found, turned, strict=True):
        assert near(one, flipped(other, 0.0))
        assert one is None or (-1 <= one.low < one.high <= 1 and one.high - one.low > 0.001)


@given(COUNTS)
def test_failures_have_the_interval_of_successes_turned_round(counts: list[Count]) -> None:
    of_failures = RowCounts((n, n - c) for n, c in counts).intervals()
    for one, other in zip(RowCounts(counts).intervals(), of_failures, strict=True):
        assert near(one, flipped(other, 0.5))


@pytest.mark.parametrize(
    ("pairs", "these", "like"),
    [
        ([((8, 8), (8, 0))], "worse", "none"),
        ([((8, 0), (8, 8))], "better", "none"),
        ([((1, 1), (1, 0))], "no difference", "none"),
        ([((8, 8), (8, 0))] * 2, "worse", "no difference"),
        ([((8, 8), (8, 0))] * 5, "worse", "worse"),
        ([((8, 8), (8, 0)), ((8, 0), (8, 8))] * 9, "no difference", "no difference"),
        ([((8, 4), (8, 4))] * 200, "no difference", "no difference"),
    ],
)
def test_few_rows_decide_about_themselves_and_not_about_others(pairs: Any, these: str, like: str) -> None:
    def verdict(one: Interval | None) -> str:
        if one is None:
            return "none"
        return "better" if one.low > 0 else "worse" if one.high < 0 else "no difference"

    assert [*map(verdict, difference_intervals(pairs))] == [these, like]


def test_none_of_twelve_may_be_up_to_one_in_five() -> None:
    (interval, none) = RowCounts([(12, 0)]).intervals()
    assert none is None
    assert interval is not None
    assert interval.low == 0
    assert interval.high == pytest.approx(0.213, abs=0.001)  # Clopper and Pearson 0.265, Jeffreys 0.179


def test_many_rows_have_the_standard_errors_of_the_textbook() -> None:
    rng = random.Random(5)
    rates = [rng.betavariate(1, 1) for _ in range(2000)]
    counts = [(6, sum(rng.random() < rate for _ in range(6))) for rate in rates]
    within = statistics.fmean(c * (6 - c) / 30 for _, c in counts) / 6  # unbiased p (1 - p), by 6 rollouts
    between = statistics.variance(c / 6 for _, c in counts)
    for interval, variance in zip(RowCounts(counts).intervals(), (within, between), strict=True):
        assert interval is not None
        half = 1.96 * math.sqrt(variance / 2000)
        assert (interval.high - interval.low) / 2 == pytest.approx(half, rel=0.03)


@pytest.mark.parametrize(
    ("agent", "size"),
    [((2.0, 2.0), (30, 4)), ((0.5, 0.5), (5, 4)), ((0.3, 6.0), (30, 4)), ((6.0, 0.3), (10, 4))],
)
def test_intervals_hold_the_truth_as_often_as_they_say(agent: Any, size: Any) -> None:
    """Of 400 evaluations 95 % +- 3 standard errors; a percentile bootstrap had 3 to 92 % here."""
    evaluations = often(400)
    least = 95 - 300 * math.sqrt(0.95 * 0.05 / evaluations)
    for cells in runpy.run_path(str(SCRIPT))["simulate"](random.Random(7), agent, size, evaluations):
        assert min(float(cell.split()[0]) for cell in cells) >= least, cells


def test_the_script_prints_a_line_for_each_agent_and_size() -> None:
    line = [sys.executable, str(SCRIPT), "--evaluations", "2"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("| 115 x 4 |") == done.stdout.count("| 1 x 8 |") == 8


def test_means_of_numbers_have_student_intervals_and_without_spread_none() -> None:
    found = mean_intervals([[1.0, 3.0], [6.0, 8.0]])
    assert found.tasks_like_these == pytest.approx((4.5 - 12.706 * 2.5, 4.5 + 12.706 * 2.5), abs=0.01)
    half = 4.303 * math.sqrt(0.5)
    assert found.these_tasks == pytest.approx((4.5 - half, 4.5 + half), abs=0.01)
    assert mean_intervals([[2.0], [5.0]], base=[[1.0], [2.0]]).these_tasks is None
    assert mean_intervals([[2.0, 2.0], [2.0, 2.0]]) == Intervals(None, None)
    with pytest.raises(OverflowError):
        mean_intervals([[1e308], [-1e308]], base=[[-1e308], [1e308]])


def test_rewards_of_0_and_1_have_the_intervals_of_pass_1_and_others_stay_in_0_to_1() -> None:
    assert intervals_of_means([[1.0, 0.0], [1.0, 1.0]]) == RowCounts([(2, 1), (2, 2)]).intervals()
    assert intervals_of_means([[0.9], [0.5]]).tasks_like_these == (0.0, 1.0)
    assert intervals_of_means([[1e200, -1e200], [1e308]]) == (None, None)


@given(st.integers(1, 60), st.integers(0, 59), st.floats(0.01, 0.99))
def test_the_beta_distribution_counts_binomial_successes(n: int, below: int, x: float) -> None:
    """P(Beta(c, n - c + 1) < x) is the chance of at least c successes of n at rate x."""
    c = 1 + below % n
    exact = math.fsum(math.comb(n, i) * x**i * (1 - x) ** (n - i) for i in range(c, n + 1))
    assert beta_cdf(x, c, n - c + 1) == pytest.approx(exact, abs=1e-9)


@given(st.floats(0.1, 1e5), st.floats(0.1, 1e5), st.sampled_from([0.025, 0.5, 0.975]))
def test_a_quantile_has_its_chance_below_it(a: float, b: float, chance: float) -> None:
    x = beta_quantile(chance, a, b)
    assert beta_cdf(max(x - 1e-9, 0), a, b) <= chance + 1e-6
    assert beta_cdf(min(x + 1e-9, 1), a, b) >= chance - 1e-6


def chance_below(value: float, freedom: int, steps: int = 4000) -> float:
    """Student's distribution function, by Simpson's rule on its density."""
    factor = math.gamma((freedom + 1) / 2) / (math.sqrt(freedom * math.pi) * math.gamma(freedom / 2))

    def density(x: float) -> float:
        return factor * (1 + x * x / freedom) ** (-(freedom + 1) / 2)

    width = value / steps
    inner = sum((4 if step % 2 else 2) * density(step * width) for step in range(1, steps))
    return 0.5 + width / 3 * (density(0) + inner + density(value))


@pytest.mark.parametrize("freedom", [*range(1, 12), 20, 39, 114, 300])
def test_the_quantiles_of_student_are_right(freedom: int) -> None:
    assert chance_below(student_t(freedom), freedom) == pytest.approx(0.975, abs=2e-5)
