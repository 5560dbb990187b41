"""Sequential decisions: the bounds against simulated paths, false alarms, and what each look counts."""

import json
import random
from collections.abc import Sequence
from functools import partial

import pytest
from pydantic import TypeAdapter
from thorough import often

from reward_kit.agent.scoring.sequential import (
    Decision,
    RowProgress,
    chance_of_loss,
    critical_values,
    decide,
    difference_of,
    looks_of,
)

EIGHT = tuple(looks_of([(8, 8)]).values())
MANY = tuple(looks_of([(50, 200)]).values())
decided = partial(decide, until_decided=True, baseline="main")


def row(n: int, c: int, results: str, planned: int = 8) -> RowProgress:
    """``results`` are 1, 0 and ? (not judged)."""
    return RowProgress(n, c, [{"1": True, "0": False, "?": None}[one] for one in results], planned)


@pytest.mark.parametrize("shares", [(1.0,), (0.5, 1.0), EIGHT, MANY])
@pytest.mark.parametrize("alpha", [0.05, 0.1])
def test_all_looks_together_are_exceeded_as_often_as_spent(shares: Sequence[float], alpha: float) -> None:
    bounds = critical_values(tuple(shares), alpha)
    assert bounds == sorted(bounds, reverse=True)
    rng = random.Random(3)
    draws, crossed, early = often(4000), 0, 0
    for _ in range(draws):
        score = before = 0.0
        for share, bound in zip(shares, bounds, strict=True):
            score += rng.gauss(0, (share - before) ** 0.5)
            before = share
            if abs(score) > bound * share**0.5:
                crossed += 1
                early += share <= 0.5
                break
    assert crossed / draws == pytest.approx(alpha, abs=3 * (alpha / draws) ** 0.5)
    assert early / draws <= alpha * 0.5**1.5 + 3 * (alpha / draws) ** 0.5


def test_the_baselines_noise_is_part_of_the_information() -> None:
    assert pytest.approx([0.25 / (1 / number + 1 / 8) for number in range(1, 9)]) == EIGHT
    many = looks_of([(4, 400)])
    assert len(many) < 50, "looks that add nothing are left out"
    assert list(many.items())[-1] == (400, 1.0)


def test_differences_are_of_the_rounds_so_far() -> None:
    rows = [row(4, 4, "1100"), row(4, 0, "0?11")]
    assert difference_of(rows, 2) == (0, pytest.approx(0.1770, abs=1e-4))
    assert difference_of(rows, 4) == (pytest.approx(1 / 12), pytest.approx(0.2480, abs=1e-4))
    assert difference_of([row(4, 4, "?")], 1) is None
    never_failing = difference_of([row(8, 8, "1")] * 100, 1)
    assert never_failing == (0, pytest.approx(0.0220, abs=1e-4)), "doubt is left"
    # a single rollout each: the standard error of McNemar's test
    discordant = [row(1, 1, "0")] * 30 + [row(1, 0, "1")] * 10 + [row(1, 1, "1")] * 20
    assert difference_of(discordant, 1) == (pytest.approx(-20 / 60), pytest.approx(40**0.5 / 60))


@pytest.mark.parametrize(
    ("results", "rows", "verdict", "after"),
    [
        ("0" * 8, 1, "worse", 2),
        ("1" * 8, 115, "within the margin", 2),
        ("1", 115, "not decided", 1),
        ("", 1, "not decided", 0),
        ("?" * 8, 1, "not decided", 0),
    ],
)
def test_it_ends_at_the_first_look_that_decides(results: str, rows: int, verdict: str, after: int) -> None:
    found = decided([row(8, 8, results)] * rows, margin=5)
    assert (found.verdict, found.round, found.rounds) == (verdict, after, 8)
    assert TypeAdapter(Decision).validate_python(json.loads(json.dumps(found.to_json()))) == found


def test_a_round_counts_once_every_row_has_played_it() -> None:
    assert decided([row(8, 4, "11111"), row(8, 4, "111")], margin=0).round == 3
    uneven = decided([row(8, 4, "11111"), row(8, 4, "1", planned=1)], margin=0)
    assert (uneven.round, uneven.played, uneven.planned) == (5, 6, 9)


def test_a_row_that_was_left_out_before_it_was_played_asks_for_nothing() -> None:
    left_out = row(8, 4, "", planned=0)
    found = decided([row(8, 4, "11111"), left_out], margin=0)
    assert (found.round, found.rounds, found.planned) == (5, 8, 8)
    assert str(decided([left_out], margin=0)) == "not decided against main: no round is complete"


def test_few_equal_evaluations_are_called_different() -> None:
    rng = random.Random(5)
    draws, alarms, within = often(400), 0, 0
    for _ in range(draws):
        rows = []
        for p in (rng.betavariate(1.2, 0.9) for _ in range(20)):
            old, *new = [sum(rng.random() < p for _ in range(4)), *(rng.random() < p for _ in range(6))]
            rows.append(RowProgress(4, old, [bool(one) for one in new], 6))
        verdict = decided(rows, margin=20).verdict
        alarms += verdict in ("better", "worse")
        within += verdict == "within the margin"
    assert alarms <= 0.05 * draws + 2 * (0.05 * draws) ** 0.5
    assert within > 0.5 * draws


def test_the_loss_of_a_row_has_the_largest_chance_of_any_rate() -> None:
    assert chance_of_loss(8, 8, 0) == pytest.approx(0.5**16)
    assert chance_of_loss(8, 4, 0) == pytest.approx((2 / 3) ** 8 * (1 / 3) ** 4, rel=1e-3)
    assert chance_of_loss(4, 4, 4) > 0.99
    assert chance_of_loss(4, 2000, 1999) > 0.98  # whose binomial coefficients no float holds
