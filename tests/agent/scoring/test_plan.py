"""The smallest difference that rows and rollouts can show: by hand, and its power by simulation."""

import math
import random

import pytest
from thorough import often

from reward_kit.agent.scoring.intervals import difference_intervals
from reward_kit.agent.scoring.sequential import RowRates, row_rates


def test_many_rows_need_the_difference_of_the_textbook() -> None:
    these, like = RowRates(0.5, 0.2, correlation=0.5).smallest_difference(4000, 4, power=0.8)
    within, between = 2 * (0.25 - 0.04) / 16_000, 2 * 0.04 * 0.5 / 4000
    assert these == pytest.approx(2.80 * math.sqrt(within), rel=0.01)
    assert like == pytest.approx(2.80 * math.sqrt(within + between), rel=0.01)


def test_rates_leave_no_room_for_what_few_rollouts_need() -> None:
    assert RowRates(0.5, 0.3).smallest_difference(1, 1, power=0.8) == (None, None)
    these, like = RowRates(0.5, 0.3).smallest_difference(1, 400, power=0.8)
    assert (these is not None, like) == (True, None)


@pytest.mark.parametrize(
    ("rows", "rollouts", "low", "high", "correlation"),
    [(40, 4, 0.4, 0.9, 0.8), (40, 4, 0.7, 1.0, 0.8), (30, 2, 0.3, 0.9, 0.3), (10, 8, 0.4, 0.9, 0.8)],
)
def test_the_difference_is_shown_as_often_as_planned(
    rows: int, rollouts: int, low: float, high: float, correlation: float
) -> None:
    rng = random.Random(rows)
    rates = RowRates((low + high) / 2, (high - low) / math.sqrt(12), correlation)
    for question, size in enumerate(rates.smallest_difference(rows, rollouts, power=0.8)):
        assert size is not None
        draws, shown = often(250), 0
        for _ in range(draws):
            pairs = []
            for _ in range(rows):
                a = rng.uniform(low, high)
                kept = question == 0 or rng.random() < correlation
                b = max((a if kept else rng.uniform(low, high)) - size, 0.0)
                a_passed, b_passed = (sum(rng.random() < p for _ in range(rollouts)) for p in (a, b))
                pairs.append(((rollouts, a_passed), (rollouts, b_passed)))
            interval = difference_intervals(pairs)[question]
            assert interval is not None
            shown += interval.high < 0
        deviation = 4 * math.sqrt(0.16 / draws)
        assert 0.8 - deviation <= shown / draws <= 0.82 + deviation, question


def test_rates_are_estimated_from_counts() -> None:
    rng = random.Random(2)
    shared = [(rng.betavariate(3, 2), rng.random() < 0.6, rng.betavariate(3, 2)) for _ in range(3000)]
    one = [(4, sum(rng.random() < p for _ in range(4))) for p, _, _ in shared]
    two = [(8, sum(rng.random() < (p if same else other) for _ in range(8))) for p, same, other in shared]
    found = row_rates(one, two)
    assert found is not None
    assert (found.mean, found.spread, found.correlation) == pytest.approx((0.6, 0.2, 0.6), abs=0.03)
    assert row_rates([(8, 4)]) is None
    assert row_rates([(1, 1), (1, 0)]) is None
