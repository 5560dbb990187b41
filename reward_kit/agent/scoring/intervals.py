"""95 % intervals for two questions: about *these tasks*, and about *tasks like these*.

*These tasks* asks for the agent's score on exactly these rows: only the rollouts are random. *Tasks like
these* asks for its score on new rows of the same kind: the rows are a random sample as well. ``RowCounts``
and ``difference_intervals`` need each row's ``(n, c)`` alone, ``c`` successes of ``n`` judged rollouts::

    RowCounts([(8, 8), (8, 5)]).intervals(1).these_tasks
    difference_intervals([((8, 8), (8, 0))]).these_tasks

Every function is deterministic. ``benchmarks/interval_coverage.py`` measures the coverage.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    Count = tuple[int, int]

TAIL = 0.025
_NEUTRAL = 1 / 3
"""Pseudo-counts of a limit: midway between Jeffreys' interval (1/2) and that of Clopper and Pearson (0)."""


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


class Intervals(NamedTuple):
    """The intervals of one number for both questions; None if there is none."""

    these_tasks: Interval | None
    tasks_like_these: Interval | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values: ``{"low", "high"}`` or null, by question."""
        return {name: one and one._asdict() for name, one in self._asdict().items()}


NO_INTERVALS = Intervals(None, None)


class RowCounts:
    """Counts ``(n, c)`` of rows; rows without a judged rollout are left out.

    An interval is that of a proportion with the effective number of trials t = m (1 - m) / V, for the
    estimate m and its variance V, as in surveys of clusters (Korn and Graubard 1998, "Confidence intervals
    for proportions with small expected number of positive counts estimated from survey data"). With x = m t,
    the limits are quantiles of Beta(x + 1/3, t - x + 2/3) and Beta(x + 2/3, t - x + 1/3).
    """

    def __init__(self, counts: Iterable[Count], tail: float = TAIL) -> None:
        self._rows = Counter([count for count in counts if count[0] > 0])
        self._tail = tail

    def intervals(self, k: int = 1, *, at: bool = False) -> Intervals:
        """The intervals of Pass^k, or with ``at`` of Pass@k, over the rows with at least k rollouts.

        *Tasks like these* need two rows.
        """
        if at:  # at least one success unless all fail
            failed = self._failures.intervals(k)
            return Intervals(*(one and Interval(1 - one.high, 1 - one.low) for one in failed))
        values = self.values(k)
        if not values:
            return NO_INTERVALS
        these = self.these_tasks(k)
        return Intervals(these, _hull(these, _tasks_like_these(values)) if values.total() > 1 else None)

    def values(self, k: int) -> Counter[float]:
        """Each row's unbiased estimate of p^k, C(c, k) / C(n, k), by the number of rows that have it."""
        values: Counter[float] = Counter()
        for (n, c), number in self._rows.items():
            if n >= k:
                values[_unbiased(n, c, k)] += number
        return values

    def these_tasks(self, k: int) -> Interval:
        """The interval of Pass^k on these tasks; there has to be a row with k rollouts.

        V is the mean variance of the rows' values, divided by the number of rows. The variance of C(c, k) /
        C(n, k) at success rate p is the sum over j of P(j) p^(2k - j), less p^(2k), with the chance P(j) that
        two choices of k from n rollouts share j (Hoeffding 1948). The moments of p are those of a beta
        posterior of each row; its prior is fitted to the rows with as many rollouts, and affects V alone.
        """
        values = self.values(k)
        rows, expected, variance = values.total(), 0.0, 0.0
        for n, moments in self._moments.items():
            if n >= k:
                expected += moments[k] / rows
                shared = math.fsum(
                    chance * (moments[2 * k - j] - moments[2 * k]) for j, chance in _overlaps(n, k)
                )
                variance += shared / rows**2
        trials = expected * (1 - expected) / variance if variance > 0 else float(rows)
        low, high = _beta_interval(_mean(values), trials, self._tail)
        if k > 1 and rows == self._rows.total():  # Pass^k is at most Pass^1
            high = min(high, self.these_tasks(1).high)
        return Interval(low, high)

    @cached_property
    def _failures(self) -> RowCounts:
        return RowCounts((n, n - c) for n, c in self._rows.elements())

    @cached_property
    def _moments(self) -> Mapping[int, Sequence[float]]:
        """By n the sums of the posterior E[p^r], r = 0 to 2n, over the rows with n rollouts."""
        sums: dict[int, list[float]] = {}
        alike = {
            n: RowCounts(row for row in self._rows.elements() if row[0] == n).prior for n, _ in self._rows
        }
        for (n, c), number in self._rows.items():
            a, b = alike[n]
            found = sums.setdefault(n, [0.0] * (2 * n + 1))
            moment = float(number)
            for r in range(2 * n + 1):
                found[r] += moment
                moment *= (a + c + r) / (a + b + n + r)
        return sums

    @property
    def prior(self) -> tuple[float, float]:
        """The parameters a, b of a beta distribution of success rates, fitted by moments.

        The correlation of a row's rollouts, 1 / (a + b + 1), is shrunk as if two more rows had none, which
        makes the interval wider.
        """
        rows = self._rows.total()
        rates = self.values(1)
        center = (_mean(rates) * rows + 0.5) / (rows + 1)
        typical_n = rows / sum(number / n for (n, _), number in self._rows.items())
        correlation = 0.0
        if rows > 1 and typical_n > 1:
            variance = _squares(rates, _mean(rates)) / (rows - 1)
            ratio = typical_n * variance / (center * (1 - center))
            correlation = min(max((ratio - 1) / (typical_n - 1), 0.0), 1.0) * (rows - 1) / (rows + 1)
        size = 1 / min(max(correlation, 0.01), 0.99) - 1
        return center * size, (1 - center) * size


def _tasks_like_these(values: Counter[float]) -> Interval:
    """The variance of the rows' values, as if one more row had been seen, half of it 0 and half 1."""
    rows = values.total() + 1
    center, spread = _with_one_more_row(values)
    return _beta_interval(_mean(values), center * (1 - center) * rows**2 / spread - 1)


def _with_one_more_row(values: Counter[float]) -> tuple[float, float]:
    """The mean and the sum of squared deviations with a further row that is half 0 and half 1."""
    center = (_mean(values) * values.total() + 0.5) / (values.total() + 1)
    return center, _squares(values, center) + (center**2 + (1 - center) ** 2) / 2


def difference_intervals(pairs: Iterable[tuple[Count, Count]], k: int = 1) -> Intervals:
    """The intervals of the mean over rows of Pass^k in B less that in A, from each row's counts in A and B.

    Rows with fewer than k rollouts on a side are left out. The squared distance of a limit is the sum of
    those of the two sides' limits, less 2 r times their product (Newcombe 1998, "Improved confidence
    intervals for the difference between binomial proportions based on paired data"). On *these tasks* r is
    0, since the rollouts of A and B are independent; for *tasks like these* it is the correlation of the
    rows' values.
    """
    kept = [(a, b) for a, b in pairs if min(a[0], b[0]) >= max(k, 1)]
    if not kept:
        return NO_INTERVALS
    a, b = _sides(tuple(kept))
    means = _mean(a.values(k)), _mean(b.values(k))
    like_a, like_b = (side.intervals(k).tasks_like_these for side in (a, b))
    these = _newcombe(means, a.these_tasks(k), b.these_tasks(k), 0.0)
    if like_a is None or like_b is None:
        return Intervals(these, None)
    (center_a, spread_a), (center_b, spread_b) = (_with_one_more_row(side.values(k)) for side in (a, b))
    product = math.fsum(
        number * (_unbiased(*one, k) - center_a) * (_unbiased(*other, k) - center_b)
        for (one, other), number in Counter(kept).items()
    )
    correlation = product / math.sqrt(spread_a * spread_b)
    return Intervals(these, _hull(these, _newcombe(means, like_a, like_b, correlation)))


@lru_cache(maxsize=8)
def _sides(pairs: tuple[tuple[Count, Count], ...]) -> tuple[RowCounts, RowCounts]:
    """The counts of A and of B; all k of a comparison share the moments that they keep."""
    a, b = (RowCounts(counts) for counts in zip(*pairs, strict=True))
    return a, b


def difference_on_these_tasks(pairs: Sequence[tuple[Count, Count]], tail: float = TAIL) -> Interval:
    """The interval of ``difference_intervals`` on these tasks for Pass^1, with the chance ``tail`` outside
    at either end; each side needs a rollout."""
    a, b = (RowCounts(counts, tail) for counts in zip(*pairs, strict=True))
    means = _mean(a.values(1)), _mean(b.values(1))
    return _newcombe(means, a.these_tasks(1), b.these_tasks(1), 0.0)


def _newcombe(means: tuple[float, float], a: Interval, b: Interval, correlation: float) -> Interval:
    value = means[1] - means[0]

    def distance(x: float, y: float) -> float:
        return math.sqrt(max(x * x + y * y - 2 * correlation * x * y, 0.0))

    low = value - distance(means[1] - b.low, a.high - means[0])
    high = value + distance(b.high - means[1], means[0] - a.low)
    return Interval(max(low, -1.0), min(high, 1.0))


def mean_intervals(
    rows: Sequence[Sequence[float]], base: Sequence[Sequence[float]] | None = None
) -> Intervals:
    """The intervals of the mean over rows of the rows' means of any numbers, or of their rise from ``base``.

    Student's t: for *tasks like these* with the standard error of the rows' means, clustered by row (Miller
    2024, "Adding Error Bars to Evals", arXiv 2411.00640), for *these tasks* with the variances within rows
    and the degrees of freedom of Satterthwaite (1946, doi 10.2307/3002019). None without any spread to
    estimate it from. The normal distribution is too narrow for few rows (Bowyer, Aitchison and Ivanova 2025,
    arXiv 2503.01747). Raises ``OverflowError`` for too large numbers.
    """
    sides = [rows] if base is None else [base, rows]
    means = [[math.fsum(row) / len(row) for row in side] for side in sides]
    values = means[0] if base is None else [b - a for a, b in zip(*means, strict=True)]
    if not all(map(math.isfinite, values)):
        raise OverflowError("the numbers are too large")
    center = math.fsum(values) / len(values)
    parts: list[tuple[float, int]] = []  # of the variance, each with its degrees of freedom
    for side, averages in zip(sides, means, strict=True):
        repeated = sum(len(row) - 1 for row in side)
        squares = [math.fsum((x - mean) ** 2 for x in row) for row, mean in zip(side, averages, strict=True)]
        singles = sum(len(row) == 1 for row in side) / max(repeated, 1)  # have the spread of the others
        for own, row in zip(squares, side, strict=True):
            if degrees := len(row) - 1:
                parts.append((own * (1 / degrees / len(row) + singles) / len(side) ** 2, degrees))
        if repeated == 0:
            parts.append((-math.inf, 1))
    within = math.fsum(part for part, _ in parts)
    between = math.fsum((value - center) ** 2 for value in values) if len(set(values)) > 1 else 0.0
    freedom = 1 / sum((part / within) ** 2 / degrees for part, degrees in parts) if within > 0 else 1
    these = _t_interval(center, within, freedom)
    clustered = _t_interval(center, between / max(len(values) - 1, 1) / len(values), len(values) - 1)
    return Intervals(these, _hull(these, clustered))


def _t_interval(center: float, variance: float, freedom: float) -> Interval | None:
    if variance <= 0:
        return None
    half = student_t(freedom) * math.sqrt(variance)
    return Interval(center - half, center + half)


def _hull(these: Interval | None, like: Interval | None) -> Interval | None:
    """New rows can only add variance: what is certain of tasks like these is so of these tasks."""
    if these is None or like is None:
        return like
    return Interval(min(these.low, like.low), max(these.high, like.high))


def _unbiased(n: int, c: int, k: int) -> float:
    return math.comb(c, k) / math.comb(n, k)


def _mean(values: Counter[float]) -> float:
    return math.fsum([value * number for value, number in values.items()]) / values.total()


def _squares(values: Counter[float], center: float) -> float:
    return math.fsum([number * (value - center) ** 2 for value, number in values.items()])


def _overlaps(n: int, k: int) -> Iterator[tuple[int, float]]:
    """Yield each likely size j of the overlap of two random choices of k from n, with its probability."""
    log = math.lgamma
    middle, reach = k * k // n, 10 + 4 * math.isqrt(n)  # at least eight standard deviations
    for j in range(max(0, 2 * k - n, middle - reach), min(k, middle + reach) + 1):
        ways = 2 * (log(k + 1) + log(n - k + 1)) - log(n + 1) - log(j + 1) - 2 * log(k - j + 1)
        yield j, math.exp(ways - log(n - 2 * k + j + 1))


def _beta_interval(value: float, trials: float, tail: float = TAIL) -> Interval:
    """The interval of a share ``value`` of effective ``trials``, which contains the value."""
    hits, misses = value * trials, (1 - value) * trials
    low = 0.0 if value <= 0 else beta_quantile(tail, hits + _NEUTRAL, misses + 1 - _NEUTRAL)
    high = 1.0 if value >= 1 else beta_quantile(1 - tail, hits + 1 - _NEUTRAL, misses + _NEUTRAL)
    return Interval(min(low, value), max(high, value))


@lru_cache(maxsize=4096)
def beta_quantile(chance: float, a: float, b: float) -> float:
    """The value below which a Beta(a, b) variable lies with this chance, to ten decimals.

    Newton's method on the distribution function, with bisection where a step leaves the bracket.
    """
    low, high, x = 0.0, 1.0, a / (a + b)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    for _ in range(100):
        error = beta_cdf(x, a, b) - chance
        low, high = (low, x) if error > 0 else (x, high)
        density = math.exp(scale + (a - 1) * math.log(x) + (b - 1) * math.log1p(-x))
        step = x - error / density if density > 0 else -1.0
        after = step if low < step < high else (low + high) / 2
        if abs(after - x) < 1e-11 or not 0 < after < 1:
            return after
        x = after
    return x


def beta_cdf(x: float, a: float, b: float) -> float:
    """The chance that a Beta(a, b) variable is below x: the continued fraction 8.17.22 of the NIST DLMF."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    upper, lower, fraction = 1.0, 0.0, 1.0  # by Lentz's method
    for step in range(1, 100_000):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        lower = 1 / (1 + term * lower or 1e-300)
        upper = 1 + term / upper or 1e-300
        fraction *= upper * lower
        if abs(upper * lower - 1) < 1e-13:
            break
    return math.exp(scale) / a / fraction


def student_t(freedom: float) -> float:
    """The 97.5 % quantile of Student's t: t^2 / (t^2 + freedom) is a Beta(1/2, freedom / 2) variable."""
    x = beta_quantile(1 - 2 * TAIL, 0.5, freedom / 2)
    return math.sqrt(freedom * x / (1 - x))
