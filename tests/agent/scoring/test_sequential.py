"""Sequential decisions: the bounds against simulated paths, false alarms, and what each look counts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest
from pydantic import TypeAdapter

from reward_kit.agent.scoring.sequential import (
    Decision,
    RowCounts,
    chance_of_loss,
    critical_values,
    decide,
    difference_of,
    looks_of,
)

EIGHT = (0.22, 0.4, 0.55, 0.67, 0.77, 0.86, 0.93, 1.0)


def decided(rows: Sequence[RowCounts], *, margin: float = 5, until_decided: bool = True) -> Decision:
    return decide(rows, margin=margin, until_decided=until_decided, baseline="main")


def row(n: int, c: int, results: str, planned: int = 8) -> RowCounts:
    """``results`` are 1, 0 and ? (not judged)."""
    return RowCounts(n, c, [{"1": True, "0": False, "?": None}[one] for one in results], planned)


def test_a_single_look_has_the_quantiles_of_the_normal_distribution() -> None:
    assert critical_values((1.0,)) == [pytest.approx(1.96, abs=0.001)]
    assert critical_values((1.0,), 0.1) == [pytest.approx(1.645, abs=0.001)]


@pytest.mark.parametrize("shares", [(0.5, 1.0), EIGHT, tuple(looks_of([(50, 200)]).values())])
@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_all_looks_together_are_exceeded_as_often_as_spent(shares: tuple[float, ...], alpha: float) -> None:
    bounds = critical_values(shares, alpha)
    assert bounds == sorted(bounds, reverse=True)
    rng = random.Random(3)
    draws, crossed, early = 4000, 0, 0
    for _ in range(draws):
        score = before = 0.0
        for share, bound in zip(shares, bounds, strict=True):
            score += rng.gauss(0, (share - before) ** 0.5)
            before = share
            if abs(score) > bound * share**0.5:
                crossed += 1
                early += share <= 0.5
                break
    assert crossed / draws == pytest.approx(alpha, abs=4 * (alpha / draws) ** 0.5)
    assert early / draws <= alpha * 0.5**1.5 + 4 * (alpha / draws) ** 0.5


def test_the_baselines_noise_is_part_of_the_information() -> None:
    assert looks_of([(8, 8)]) == pytest.approx(
        {number: 0.25 / (1 / number + 1 / 8) for number in range(1, 9)}
    )
    assert list(looks_of([(8, 8), (8, 1)])) == [1, 2, 3, 4, 5, 6, 8]
    many = looks_of([(4, 400)])
    assert len(many) < 50, "looks that add nothing are left out"
    assert list(many.items())[-1] == (400, 1.0)


def test_differences_are_of_the_rounds_so_far_and_rows_that_never_fail_leave_doubt() -> None:
    rows = [row(4, 4, "1100"), row(4, 0, "0?11")]
    value, error = difference_of(rows, 2) or (0, 0)
    assert value == 0
    assert difference_of(rows, 4) == (pytest.approx((-0.5 + 2 / 3) / 2), pytest.approx(0.2480, abs=1e-4))
    assert difference_of([row(4, 4, "?")], 1) is None
    _, error = difference_of([row(8, 8, "1")] * 100, 1) or (0, 0)
    assert 0.01 < error < 0.03
    # a single rollout each: the standard error of McNemar's test
    discordant = [row(1, 1, "0", 1)] * 30 + [row(1, 0, "1", 1)] * 10 + [row(1, 1, "1", 1)] * 20
    assert difference_of(discordant, 1) == (pytest.approx(-20 / 60), pytest.approx(40**0.5 / 60))


@pytest.mark.parametrize(
    ("results", "verdict", "after"),
    [
        ("0" * 8, "worse", 2),
        ("1" * 8, "within the margin", 2),
        ("1" * 1, "not decided", 1),
        ("", "not decided", 0),
        ("?" * 8, "not decided", 0),
    ],
)
def test_it_ends_at_the_first_look_that_decides(results: str, verdict: str, after: int) -> None:
    found = decided([row(8, 8, results)] * (115 if verdict == "within the margin" else 1))
    assert (found.verdict, found.round, found.rounds) == (verdict, after, 8)
    assert found.is_final == (verdict != "not decided")
    again = TypeAdapter(Decision).validate_python(json.loads(json.dumps(found.to_json())))
    assert again == found


def test_a_round_counts_once_every_row_has_played_it() -> None:
    assert decided([row(8, 4, "11111"), row(8, 4, "111")], margin=0).round == 3
    uneven = decided([row(8, 4, "11111"), row(8, 4, "1", planned=1)], margin=0)
    assert (uneven.round, uneven.played, uneven.planned) == (5, 6, 9)
    once = decided([row(8, 8, "0" * 8)], until_decided=False)
    assert (once.verdict, once.round) == ("worse", 8)


def test_few_equal_evaluations_are_called_different() -> None:
    rng = random.Random(5)
    draws, alarms, within = 400, 0, 0
    for _ in range(draws):
        rates = [rng.betavariate(1.2, 0.9) for _ in range(20)]
        rows = [
            RowCounts(4, sum(rng.random() < p for _ in range(4)), [rng.random() < p for _ in range(6)], 6)
            for p in rates
        ]
        verdict = decided(rows, margin=20).verdict
        alarms += verdict in ("better", "worse")
        within += verdict == "within the margin"
    assert alarms <= 0.05 * draws + 2 * (0.05 * draws) ** 0.5
    assert within > 0.5 * draws


def test_the_loss_of_a_row_has_the_largest_chance_of_any_rate() -> None:
    assert chance_of_loss(8, 8, 0) == pytest.approx(0.5**16)
    assert chance_of_loss(8, 4, 0) == pytest.approx((2 / 3) ** 8 * (1 / 3) ** 4, rel=1e-3)
    assert chance_of_loss(4, 4, 4) > 0.99
