"""How well rollouts went, as numbers: pure functions over counts and lists.

A task (a row of the dataset) has ``n`` judged rollouts, ``c`` of them successful.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SUCCESS_THRESHOLD = 1 - 1e-6
"""A reward of at least this much is a success."""

BOOTSTRAP_DRAWS = 1000
LEADERBOARD_KS = (1, 2, 3, 4)
LARGE = sys.float_info.max / 4
"""Numbers above it, divided by how many there are, may have sums or differences that are none."""
SMALLER = 2.0**-64
"""A factor for such numbers, a power of two: it rounds none that counts beside them."""


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over tasks.

    ``interval`` is None where fewer than two tasks are counted: there is nothing to resample. ``left_out`` is
    the number of tasks that have too few judged rollouts.
    """

    value: float
    interval: Interval | None
    tasks: int
    left_out: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; ``low`` and ``high`` are null where there is no interval."""
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


def is_success(reward: float) -> bool:
    """Whether a reward counts as solved."""
    return reward >= SUCCESS_THRESHOLD


def shown_ks(largest: int) -> list[int]:
    """Of the ks from 1 to ``largest`` those that tables show: the first, powers of two, and the last."""
    return [k for k in range(1, largest + 1) if k in LEADERBOARD_KS or k & (k - 1) == 0 or k == largest]


def pass_power_k(n: int, c: int, k: int) -> float:
    """Pass^k of one task: the chance that k rollouts drawn from its n all succeeded, C(c, k) / C(n, k).

    The unbiased estimate of the chance that k independent rollouts all succeed (Yao et al. 2024, tau-bench,
    arXiv 2406.12045). Exact up to the final division. Raises ``ValueError`` unless 0 <= c <= n and 1 <= k <=
    n.
    """
    _check_counts(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Pass@k of one task: the chance that at least one of k rollouts drawn from its n succeeded, 1 - C(n-c,
    k) / C(n, k).

    Chen et al. 2021 (arXiv 2107.03374). Exact up to the final division. Raises ``ValueError`` as
    ``pass_power_k``.
    """
    _check_counts(n, c, k)
    draws = math.comb(n, k)
    return (draws - math.comb(n - c, k)) / draws


def pass_table(counts: Sequence[tuple[int, int]], *, seed: int = 0) -> PassTable:
    """Pass^k and Pass@k over tasks, given each task's ``(n, c)``.

    For each k the mean is over the tasks with at least k judged rollouts; the others are counted in
    ``left_out``.
    """
    pass_power: dict[int, Estimate] = {}
    pass_at: dict[int, Estimate] = {}
    ks_by_counted: dict[int, list[int]] = {}
    for k in range(1, max((n for n, _ in counts), default=0) + 1):
        ks_by_counted.setdefault(sum(n >= k for n, _ in counts), []).append(k)
    # The tasks that count for k are nested: ks that count equally many count the same ones, and share draws.
    for counted, ks in ks_by_counted.items():
        vectors = [
            (*(pass_power_k(n, c, k) for k in ks), *(pass_at_k(n, c, k) for k in ks))
            for n, c in counts
            if n >= ks[0]
        ]
        estimates = mean_estimates(vectors, seed=seed, left_out=len(counts) - counted)
        pass_power.update(zip(ks, estimates[: len(ks)], strict=True))
        pass_at.update(zip(ks, estimates[len(ks) :], strict=True))
    return PassTable(pass_power=pass_power, pass_at=pass_at)


def success_within_turns(tasks: Sequence[tuple[int, Sequence[int]]]) -> dict[int, float]:
    """The share of rollouts that had succeeded within k turns, for k from 1 to the latest turn of success.

    Each task is its number of judged rollouts n and the turns (from 1) in which its successful ones
    succeeded. The share is taken per task and then averaged over tasks with n > 0, so that at the last k it
    equals Pass^1. Unlike Pass^k it draws nothing: k counts turns of one rollout, not rollouts. Empty where
    none succeeded.
    """
    counted = [(n, Counter(turns)) for n, turns in tasks if n > 0]
    latest = max((turn for _, turns in counted for turn in turns), default=0)
    shares: dict[int, float] = {}
    within = [0] * len(counted)
    share = 0.0
    telling = {turn for _, turns in counted for turn in turns}
    for k in range(1, latest + 1):
        if k in telling:
            within = [before + turns[k] for before, (_, turns) in zip(within, counted, strict=True)]
            total = math.fsum(number / n for number, (n, _) in zip(within, counted, strict=True))
            share = total / len(counted)
        shares[k] = share
    return shares


def mean_estimates(
    vectors: Sequence[tuple[float, ...]], *, seed: int = 0, left_out: int = 0, draws: int = BOOTSTRAP_DRAWS
) -> list[Estimate]:
    """The mean of each column over tasks (one vector each), with its interval by bootstrap over tasks.

    The percentile bootstrap: tasks are drawn with replacement ``draws`` times, and the interval spans the
    middle 95 % of the means (Efron and Tibshirani 1993, chapter 13). The same ``seed`` gives the same
    interval.
    """
    if not vectors:
        return []
    tasks = len(vectors)
    if any(abs(value) > LARGE / tasks for vector in vectors for value in vector):
        smaller = [tuple(value * SMALLER for value in vector) for vector in vectors]
        return [_larger(one) for one in mean_estimates(smaller, seed=seed, left_out=left_out, draws=draws)]
    width = len(vectors[0])
    means = [math.fsum(vector[column] for vector in vectors) / tasks for column in range(width)]
    if tasks < 2:
        return [Estimate(value, None, tasks, left_out) for value in means]
    if all(vector == vectors[0] for vector in vectors):
        return [Estimate(value, Interval(value, value), tasks, left_out) for value in vectors[0]]
    rng = random.Random(seed)  # noqa: S311 - statistics, not secrets
    resampled: list[list[float]] = [[] for _ in range(width)]
    for _ in range(draws):
        # Tasks have few distinct vectors, so counting them first keeps the inner loop short.
        drawn = Counter(rng.choices(vectors, k=tasks)).items()
        for column, values in enumerate(resampled):
            values.append(sum(vector[column] * count for vector, count in drawn) / tasks)
    intervals = [Interval(percentile(values, 2.5), percentile(values, 97.5)) for values in resampled]
    return [
        Estimate(value, interval, tasks, left_out) for value, interval in zip(means, intervals, strict=True)
    ]


def _larger(estimate: Estimate) -> Estimate:
    """An estimate of numbers that were made ``SMALLER``, of the numbers as they were."""
    low_and_high = None if estimate.interval is None else Interval(*map(_as_it_was, estimate.interval))
    return replace(estimate, value=_as_it_was(estimate.value), interval=low_and_high)


def _as_it_was(value: float) -> float:
    largest = sys.float_info.max  # rounding may have brought a mean of the largest numbers above them
    return max(-largest, min(largest, value / SMALLER))


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean, also of numbers whose sum is too large to be one; None of nothing."""
    if not values:
        return None
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return _as_it_was(math.fsum(value * SMALLER for value in values) / len(values))


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of the values lie below, linear in between; ``ValueError`` if none."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def _check_counts(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"no such draw: k={k} of n={n} rollouts, c={c} of them successful")
