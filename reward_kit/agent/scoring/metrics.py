"""Pass^k and means: pure functions over counts and lists.

A task (a row of the dataset) has ``n`` judged rollouts, ``c`` of them successful.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

from reward_kit.agent.scoring.intervals import NO_INTERVALS, Interval, Intervals, RowCounts, mean_intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reward_kit.agent.scoring.rows import RowResult

LEADERBOARD_KS = (1, 2, 3, 4)


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks. ``left_out`` counts the tasks with too few judged rollouts."""

    value: float
    tasks: int
    left_out: int
    estimated: Callable[[], Intervals] = field(repr=False, compare=False)

    @cached_property
    def intervals(self) -> Intervals:
        """The intervals for these tasks and for tasks like these, computed when first asked for."""
        return self.estimated()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; an interval is ``{"low", "high"}``, or null if there is none."""
        counts = {"tasks": self.tasks, "left_out": self.left_out}
        return {"value": self.value, **self.intervals.to_json(), **counts}


@dataclass(frozen=True, slots=True)
class PassTable:
    """Pass^k and Pass@k for each k from 1 to the largest number of judged rollouts of any task."""

    pass_power: Mapping[int, Estimate] = field(default_factory=dict)
    pass_at: Mapping[int, Estimate] = field(default_factory=dict)

    @property
    def score(self) -> float | None:
        """The overall score: the mean of Pass^1 to Pass^4 over those that exist; None if none does."""
        return mean([self.pass_power[k].value for k in LEADERBOARD_KS if k in self.pass_power])

    def to_json(self) -> dict[str, Any]:
        """``score``, ``pass_power`` and ``pass_at``, the latter two by k."""
        power, at = (
            {str(k): one.to_json() for k, one in side.items()} for side in (self.pass_power, self.pass_at)
        )
        return {"score": self.score, "pass_power": power, "pass_at": at}


def shown_ks(largest: int) -> list[int]:
    """The ks from 1 to ``largest`` that tables show: the first four, powers of two, and the last."""
    return [k for k in range(1, largest + 1) if k in LEADERBOARD_KS or k & (k - 1) == 0 or k == largest]


@lru_cache(maxsize=256)
def pass_curves(n: int, c: int) -> list[tuple[float, float]]:
    """Pass^k and Pass@k of one task for k from 1 to n, each exact up to the final division.

    Pass^k = C(c, k) / C(n, k) is the chance that k rollouts drawn from its n all succeeded: the unbiased
    estimate of the chance that k independent rollouts all succeed (Yao et al. 2024, tau-bench, arXiv
    2406.12045). Pass@k = 1 - C(n-c, k) / C(n, k) is the chance that at least one of them did (Chen et al.
    2021, arXiv 2107.03374). Each binomial coefficient follows from the one before: n = 10 000 takes 0.1 s
    instead of minutes.
    """
    curves = []
    draws = all_succeed = all_fail = 1
    for k in range(1, n + 1):
        draws = draws * (n - k + 1) // k
        all_succeed = all_succeed * (c - k + 1) // k if k <= c else 0
        all_fail = all_fail * (n - c - k + 1) // k if k <= n - c else 0
        curves.append((all_succeed / draws, (draws - all_fail) / draws))
    return curves


def pass_table(counts: Sequence[tuple[int, int]]) -> PassTable:
    """Pass^k and Pass@k over tasks, given each task's ``(n, c)``.

    For each k the mean is over the tasks with at least k judged rollouts; the others are counted in
    ``left_out``.
    """
    of_rows = RowCounts(counts)
    curves_of = {count: pass_curves(*count) for count in set(counts)}
    pass_power: dict[int, Estimate] = {}
    pass_at: dict[int, Estimate] = {}
    for k in range(1, max((n for n, _ in counts), default=0) + 1):
        curves = [curves_of[count][k - 1] for count in counts if count[0] >= k]
        tasks = (len(curves), len(counts) - len(curves))
        powers, ats = zip(*curves, strict=True)
        pass_power[k] = Estimate(average(powers), *tasks, partial(of_rows.intervals, k))
        pass_at[k] = Estimate(average(ats), *tasks, partial(of_rows.intervals, k, at=True))
    return PassTable(pass_power, pass_at)


def passes_of(rows: Sequence[RowResult]) -> PassTable:
    """Pass^k and Pass@k over rows."""
    return pass_table([(row.n_scored, row.passed) for row in rows])


def reward_of(rows: Sequence[RowResult]) -> Estimate | None:
    """The mean over rows of their mean reward; None if nothing is judged."""
    rewards = [row.rewards for row in rows if row.rewards]
    if not rewards:
        return None
    value = average([average(each) for each in rewards])
    return Estimate(value, len(rewards), len(rows) - len(rewards), partial(intervals_of_means, rewards))


def intervals_of_means(rows: Sequence[Sequence[float]]) -> Intervals:
    """The intervals of the mean over rows of the rows' means: those of Pass^1 if all values are 0 or 1.

    None for numbers that overflow.
    """
    if set().union(*rows) <= {0, 1}:
        return RowCounts((len(row), round(sum(row))) for row in rows).intervals()
    try:
        found = mean_intervals(rows)
    except OverflowError:
        return NO_INTERVALS
    if any(not 0 <= value <= 1 for row in rows for value in row):
        return found
    return Intervals(*(one and Interval(max(one.low, 0.0), min(one.high, 1.0)) for one in found))


def success_within_turns(tasks: Sequence[tuple[int, Sequence[int]]]) -> dict[int, float]:
    """The share of rollouts that had succeeded within k turns, by k from 1 to the latest turn of success.

    Each task is its number of judged rollouts n and the turns (from 1) in which its successful ones
    succeeded. The share is taken per task and then averaged over tasks with n > 0, so that at the last k it
    equals Pass^1. k counts turns of one rollout, not rollouts as in Pass^k. Empty if none succeeded.
    """
    judged = [(n, turns) for n, turns in tasks if n > 0]
    latest = max((turn for _, turns in judged for turn in turns), default=0)
    return {
        k: math.fsum(sum(turn <= k for turn in turns) / n for n, turns in judged) / len(judged)
        for k in range(1, latest + 1)
    }


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean; None of nothing."""
    return average(values) if values else None


def average(values: Sequence[float]) -> float:
    """The arithmetic mean of at least one number, also if their sum overflows."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of the values (at least one) lie below, linear in between."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
