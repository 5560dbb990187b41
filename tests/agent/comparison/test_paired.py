"""The difference of two evaluations on the same rows, and its interval."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_kit.agent.comparison.measures import PairedDifference, mean_difference, student_t
from reward_kit.agent.scoring.metrics import Interval, percentile

Row = tuple[list[int], list[int]]
"""The rollouts of a row in A and in B: 1 for a success."""


def played(rng: random.Random, rows: int, rollouts: int, better: float = 0.0) -> list[Row]:
    """Rows of very different difficulty, on which B does better by as much on average."""
    made = []
    for _ in range(rows):
        ease = rng.betavariate(0.7, 0.7)
        shift = rng.gauss(better, 0.15)
        chances = (ease, min(1.0, max(0.0, ease + shift)))
        made.append(tuple([int(rng.random() < chance) for _ in range(rollouts)] for chance in chances))
    return made


def differences(rows: list[Row]) -> list[float]:
    return [sum(b) / len(b) - sum(a) / len(a) for a, b in rows]


def brute_force(rows: list[Row], rng: random.Random, draws: int = 4000) -> tuple[float, Interval]:
    """Draw rows with replacement, with all their rollouts, and count all successes anew each time."""
    values = []
    for _ in range(draws):
        drawn = rng.choices(rows, k=len(rows))
        rates = [
            sum(sum(row[side]) for row in drawn) / sum(len(row[side]) for row in drawn) for side in (0, 1)
        ]
        values.append(rates[1] - rates[0])
    center = sum(values) / draws
    spread = math.sqrt(sum((value - center) ** 2 for value in values) / draws)
    return spread, Interval(percentile(values, 2.5), percentile(values, 97.5))


@pytest.mark.parametrize("rollouts", [1, 4])
@pytest.mark.parametrize("rows", [60, 115])
def test_the_interval_is_that_of_a_bootstrap_over_rows(rows: int, rollouts: int) -> None:
    rng = random.Random(rows + rollouts)
    sample = played(rng, rows, rollouts, better=0.1)
    found = mean_difference(differences(sample))
    assert found.interval is not None
    error = (found.interval.high - found.interval.low) / 2 / student_t(rows - 1)
    spread, interval = brute_force(sample, rng)
    assert error == pytest.approx(spread, rel=0.05)
    assert found.interval.low == pytest.approx(interval.low, abs=0.01)
    assert found.interval.high == pytest.approx(interval.high, abs=0.01)


def test_the_interval_holds_the_truth_as_often_as_it_says() -> None:
    rng = random.Random(3)
    cases = 600
    held = 0
    for _ in range(cases):
        interval = mean_difference([rng.gauss(0.05, 0.3) for _ in range(8)]).interval
        assert interval is not None
        held += interval.low <= 0.05 <= interval.high
    assert 0.93 <= held / cases <= 0.97  # 1.96 standard errors of 8 rows would hold it in 0.91 of the cases


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


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.25], PairedDifference(0.25, None, 1, 1)),
        ([0.0] * 5, PairedDifference(0.0, Interval(0.0, 0.0), 5, 0)),
        ([0.1] * 3, PairedDifference(0.1, Interval(0.1, 0.1), 3, 3)),
    ],
)
def test_a_single_row_and_rows_without_spread(values: list[float], expected: PairedDifference) -> None:
    assert mean_difference(values) == expected


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=9))
def test_no_interval_goes_beyond_what_can_be(successes: list[tuple[int, int]]) -> None:
    rows = [(b - a) / 4 for a, b in successes]
    free, cut = mean_difference(rows), mean_difference(rows, most=1.0)
    assert free.interval is not None
    assert cut.interval == Interval(max(-1.0, free.interval.low), min(1.0, free.interval.high))
    assert cut.interval.low <= cut.value <= cut.interval.high
    assert (cut.value, cut.verdict, cut.differing) == (free.value, free.verdict, free.differing)


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ([0.25, 0.5, 0.25, 0.5], "better"),
        ([-0.25, -0.5, -0.25, -0.5], "worse"),
        ([0.25, -0.5, 0.25, 0.5], "no difference"),
        ([0.0, 0.0, 0.0], "no difference"),
        ([-1.0], "no difference"),
    ],
)
def test_the_verdict_is_that_of_the_interval(values: list[float], verdict: str) -> None:
    assert mean_difference(values).verdict == verdict


rates = st.integers(-4, 4).map(lambda quarters: quarters / 4)


@given(st.lists(rates, min_size=1, max_size=40))
def test_the_other_way_round_all_signs_are_turned(values: list[float]) -> None:
    found, turned = mean_difference(values), mean_difference([-value for value in values])
    assert turned.value == -found.value
    assert (turned.rows, turned.differing) == (found.rows, found.differing)
    if found.interval is None:
        assert turned.interval is None
    else:
        assert turned.interval == Interval(-found.interval.high, -found.interval.low)
