"""Pass^k, means and bootstrap intervals: pure functions over counts and lists.

A task (a row of the dataset) has ``n`` judged rollouts, ``c`` of them successful.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from itertools import chain
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from reward_kit.agent.scoring.rows import RowResult

BOOTSTRAP_DRAWS = 1000
LEADERBOARD_KS = (1, 2, 3, 4)
FEW_DISTINCT = 16
"""Vectors are few distinct ones if each stands for this many tasks on average."""


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks. ``left_out`` counts the tasks with too few judged rollouts."""

    value: float
    tasks: int
    left_out: int
    resampled: Callable[[], Interval | None] = field(repr=False, compare=False)

    @cached_property
    def interval(self) -> Interval | None:
        """The interval, resampled when it is first asked for; None for fewer than two tasks."""
        return self.resampled()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; ``low`` and ``high`` are null if there is no interval."""
        low, high = self.interval or (None, None)
        return {"value": self.value, "low": low, "high": high, "tasks": self.tasks, "left_out": self.left_out}


@dataclass(frozen=True, slots=True)
class PassTable:
    """Pass^k and Pass@k for each k from 1 to the largest number of judged rollouts of any task."""

    pass_power: Mapping[int, Estimate] = field(default_factory=dict)
    pass_at: Mapping[int, Estimate] = field(default_factory=dict)

    @property
    def score(self) -> float | None:
        """The overall score: the mean of Pass^1 to Pass^4 over those that exist; None if none does."""
        return mean([self.pass_power[k].value for k in LEADERBOARD_KS if k in self.pass_power])


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


def pass_table(counts: Sequence[tuple[int, int]], *, seed: int = 0) -> PassTable:
    """Pass^k and Pass@k over tasks, given each task's ``(n, c)``.

    For each k the mean is over the tasks with at least k judged rollouts; the others are counted in
    ``left_out``.
    """
    pass_power: dict[int, Estimate] = {}
    pass_at: dict[int, Estimate] = {}
    curves = {count: pass_curves(*count) for count in set(counts)}
    first = 1
    for last in sorted({n for n, _ in counts if n}):
        # Tasks with at least k rollouts are the same for these ks, and so are the draws.
        ks = range(first, last + 1)
        known = [count for count in counts if count[0] >= first]
        vectors = {count: tuple(chain.from_iterable(curves[count][first - 1 : last])) for count in set(known)}
        left_out = len(counts) - len(known)
        estimates = mean_estimates([vectors[count] for count in known], seed=seed, left_out=left_out)
        pass_power.update(zip(ks, estimates[::2], strict=True))
        pass_at.update(zip(ks, estimates[1::2], strict=True))
        first = last + 1
    return PassTable(pass_power, pass_at)


def passes_of(rows: Sequence[RowResult], *, seed: int) -> PassTable:
    """Pass^k and Pass@k over rows."""
    return pass_table([(row.judged, row.passed) for row in rows], seed=seed)


def reward_of(rows: Sequence[RowResult], *, seed: int) -> Estimate | None:
    """The mean over rows of their mean reward; None if nothing is judged."""
    rewards = [(row.reward,) for row in rows if row.reward is not None]
    return next(iter(mean_estimates(rewards, seed=seed, left_out=len(rows) - len(rewards))), None)


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


def mean_estimates(
    vectors: Sequence[tuple[float, ...]], *, seed: int = 0, left_out: int = 0
) -> list[Estimate]:
    """The mean of each column over tasks (one vector each), with its interval by bootstrap over tasks.

    The percentile bootstrap: tasks are drawn with replacement ``BOOTSTRAP_DRAWS`` times, and the interval
    spans the middle 95 % of the means (Efron and Tibshirani 1993, chapter 13). The same ``seed`` gives the
    same interval.
    """
    tasks, distinct = len(vectors), Counter(vectors)
    columns = list(zip(*distinct, strict=True))
    kept = cache(lambda: list(_draws(vectors, distinct, seed)))

    def interval(column: tuple[float, ...]) -> Interval | None:
        if tasks < 2:
            return None
        if len(column) == 1 or set(column) in ({0.0}, {1.0}):
            return Interval(column[0], column[0])
        # Many columns share the draws; a single one may have too many distinct values to keep them.
        drawn = kept() if len(columns) > 1 else _draws(vectors, distinct, seed)
        means = sorted(sum(map(mul, column, counts)) / tasks for counts in drawn)
        return Interval(percentile(means, 2.5), percentile(means, 97.5))

    return [
        Estimate(
            average([vector[place] for vector in vectors]) if len(column) > 1 else column[0],
            tasks,
            left_out,
            partial(interval, column),
        )
        for place, column in enumerate(columns)
    ]


def _draws(
    vectors: Sequence[tuple[float, ...]], distinct: Counter[tuple[float, ...]], seed: int
) -> Iterator[list[int]]:
    """Yield samples of ``vectors`` with replacement, as counts of the ``distinct`` ones.

    The counts of few distinct vectors are drawn as a multinomial, which is far faster.
    """
    rng = random.Random(seed)  # noqa: S311 - statistics
    many = len(distinct) * FEW_DISTINCT > len(vectors)
    places = {vector: place for place, vector in enumerate(distinct)}
    drawable = [places[vector] for vector in vectors] if many else []
    for _ in range(BOOTSTRAP_DRAWS):
        if many:
            drawn = Counter(rng.choices(drawable, k=len(vectors)))
            yield [drawn[place] for place in range(len(distinct))]
            continue
        tasks = weight = len(vectors)
        counts = []
        for number in distinct.values():
            counts.append(_binomial(tasks, number / weight, rng) if number < weight else tasks)
            tasks, weight = tasks - counts[-1], weight - number
        yield counts


def _binomial(trials: int, chance: float, rng: random.Random) -> int:
    """The number of ``trials`` whose uniform number in [0, 1) is below ``chance``.

    All numbers are compared with ``chance`` bit by bit: one ``getrandbits`` decides about half of the rest.
    """
    successes = 0
    while trials and chance:
        chance *= 2
        ones = rng.getrandbits(trials).bit_count()
        if chance >= 1:
            chance -= 1
            successes, trials = successes + trials - ones, ones
        else:
            trials -= ones
    return successes


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
