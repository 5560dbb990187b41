"""Decide between a baseline and a new evaluation while its rollouts come in, round by round.

A round is one rollout of every row. After each, a group-sequential test compares Pass^1 on *these tasks*, of
which only the rollouts are random, so that all looks together err in at most 5 %::

    decision = decide(rows, margin=5, until_decided=True)
    decision.verdict, decision.round  # "worse", 3

``RowRates`` give the smallest difference of Pass^1 that an evaluation of some rows and rollouts can show.

The mean difference of two agents over n rows with k rollouts each has the variance (Miller 2024, "Adding
Error Bars to Evals", arXiv 2411.00640, on power)::

    these tasks        (w_A + w_B) / (n k)              w = m (1 - m) - s^2, the mean of p (1 - p)
    tasks like these   that + 2 s^2 (1 - r) / n + (m^2 + (1 - m)^2) / (n + 1)^2

The rates p of the rows have mean m, nearer to 1/2 by the difference in B, and in both the standard deviation
s, with correlation r. The last term is the further row that the intervals for tasks like these assume.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from statistics import NormalDist, covariance, fmean
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.base.text import count
from reward_kit.agent.scoring.intervals import Interval, RowCounts, beta_cdf, difference_on_these_tasks

if TYPE_CHECKING:
    from collections.abc import Sequence

Verdict = Literal["better", "worse", "within the margin", "not decided"]
ALPHA = 0.05
"""The chance that equal evaluations are called better or worse, over all looks together."""
POWER = 1.5
"""Exponent of the spending function: 1 gives about the bounds of Pocock, 3 about O'Brien and Fleming's."""
LEAST_GAIN = 0.02
"""The least information between two looks, as a share of all: closer looks cost power and decide little."""
_STEP = 0.05


class RowProgress(NamedTuple):
    """A row in both evaluations: ``c`` of the baseline's ``n`` judged rollouts succeeded.

    ``results`` are the new ones in order, at most ``planned``; None: not judged.
    """

    n: int
    c: int
    results: Sequence[bool | None]
    planned: int


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict after ``round`` of ``rounds`` rounds, ``played`` of ``planned`` rollouts of these rows.

    ``difference`` is Pass^1 minus that of ``baseline`` (a name), ``interval`` its interval at ``level``
    percent for any number of looks; None before the first. ``margin`` is in points, and so is
    ``least_margin``: the smallest that all planned rollouts show in 80 % of runs if nothing differs.
    """

    verdict: Verdict
    round: int
    rounds: int
    rows: int
    played: int
    planned: int
    margin: float
    baseline: str
    difference: float | None = None
    interval: Interval | None = None
    level: int = 95
    least_margin: float = 0.0

    @property
    def is_final(self) -> bool:
        """True if no further round is needed."""
        return self.verdict != "not decided"

    def __str__(self) -> str:
        """One line: ``worse than main after round 2 of 8: -12.1 points, 95 % interval -20.0 to -4.2 …``."""
        rollouts = f"{self.played} of {count(self.planned, 'rollout')}"
        after = f" after round {self.round} of {self.rounds}"
        if self.round == self.rounds:
            rollouts, after = count(self.planned, "rollout"), ""
        if self.difference is None or self.interval is None:
            return f"not decided against {self.baseline}: no round is complete"
        within = f"within {self.margin:g} points of"
        words = {"within the margin": within, "not decided": "not decided against"}
        low, high = (f"{100 * one:+.1f}" for one in self.interval)
        line = (
            f"{words.get(self.verdict, f'{self.verdict} than')} {self.baseline}{after}: "
            f"{100 * self.difference:+.1f} points, {self.level} % interval {low} to {high} "
            f"(these tasks: {count(self.rows, 'row')}, {rollouts})"
        )
        return line if self.is_final else f"{line}; {self.advice}"

    @property
    def advice(self) -> str:
        """The margin that can be shown, in words; if that is within ``margin``, what would decide."""
        if self.least_margin <= self.margin:
            return "more rollouts would decide"
        return (
            f"{count(self.rows, 'row')} with these rollouts show no difference only within --margin "
            f"{math.ceil(self.least_margin)} or more"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**as_json(self), "interval": self.interval and self.interval._asdict()}


def decide(rows: Sequence[RowProgress], *, margin: float, until_decided: bool, baseline: str) -> Decision:
    """The verdict at the first look that decides, else at the last.

    With ``until_decided`` there is a look after each complete round, else one after all of them, with the
    interval of ``difference_intervals``. *Better* or *worse*: the 95 % interval of the difference excludes
    zero. *Within the margin* (points): the 90 % interval lies inside of ± ``margin``, which is two one-sided
    tests at 5 %.
    """
    rounds = max(row.planned for row in rows)
    complete = min(rounds if len(row.results) >= row.planned else len(row.results) for row in rows)
    asked = [(row.n, row.planned) for row in rows if row.planned]  # others are left out by the last run
    looks = looks_of(asked) if until_decided and asked else {rounds: 1.0}
    shares = tuple(looks.values())
    planned = sum(row.planned for row in rows)
    bounds = critical_values(shares), critical_values(shares, 2 * ALPHA)
    least = (bounds[1][-1] + NormalDist().inv_cdf(0.9)) * 100
    least *= _error([(row.n, row.c, row.planned, row.planned * row.c / row.n) for row in rows if row.planned])
    n_rows = len(_counts(rows)) or len(rows)
    decision = Decision("not decided", 0, rounds, n_rows, 0, planned, margin, baseline, least_margin=least)
    for look, *both in zip(looks, *bounds, strict=True):
        if look > complete or decision.is_final:
            break
        if (found := difference_of(rows, look)) is None:
            continue
        value, error = found
        if until_decided:
            wide, narrow = (Interval(max(-1, value - z * error), min(1, value + z * error)) for z in both)
        else:
            wide, narrow = (difference_on_these_tasks(_counts(rows), each / 2) for each in (ALPHA, 2 * ALPHA))
        verdict: Verdict = "not decided"
        level, interval = 95, wide
        if wide.low > 0 or wide.high < 0:
            verdict = "better" if value > 0 else "worse"
        elif -margin / 100 < narrow.low and narrow.high < margin / 100:
            verdict, level, interval = "within the margin", 90, narrow
        decision = replace(
            decision,
            verdict=verdict,
            round=look,
            played=sum(min(look, row.planned) for row in rows),
            difference=value,
            interval=interval,
            level=level,
        )
    return decision


def difference_of(rows: Sequence[RowProgress], rounds: int) -> tuple[float, float] | None:
    """The mean difference of the rows' success rates after ``rounds`` rounds, and its standard error.

    The variance p(1 - p) of a row is estimated from both evaluations together, which overstates it if they
    differ: unbiased, x (N - x) / (N (N - 1)) of N rollouts with x successes (with a single rollout each, the
    sum over rows is McNemar's), or by Jeffreys' prior, (x + ½)(N - x + ½) / ((N + 1)(N + 2)). The larger of
    the two sums counts, so that rows that always succeed leave some doubt. None if no rollout is judged.
    """
    counts = _counts(rows, rounds)
    if not counts:
        return None
    differences = [x / m - c / n for (n, c), (m, x) in counts]
    return math.fsum(differences) / len(counts), _error([(*before, *now) for before, now in counts])


def _counts(
    rows: Sequence[RowProgress], rounds: int | None = None
) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The counts ``(n, c)`` of the baseline and the first ``rounds`` rounds, of rows with both."""
    judged = ((row, [one for one in row.results[:rounds] if one is not None]) for row in rows)
    return [((row.n, row.c), (len(results), sum(results))) for row, results in judged if results]


def _error(counts: Sequence[tuple[int, int, int, float]]) -> float:
    """The standard error of the mean difference of rows ``(n, c, m, x)``."""
    unbiased = jeffreys = 0.0
    for n, c, m, x in counts:
        total, passed, weight = m + n, x + c, 1 / m + 1 / n
        unbiased += weight * passed * (total - passed) / (total * (total - 1))
        jeffreys += weight * (passed + 0.5) * (total - passed + 0.5) / ((total + 1) * (total + 2))
    return math.sqrt(max(unbiased, jeffreys)) / max(len(counts), 1)


def looks_of(rows: Sequence[tuple[int, int]]) -> dict[int, float]:
    """The rounds after which to look, with their shares of the information, for rows of (n, planned).

    The information is the inverse variance of the difference, to which the baseline's noise belongs. The
    covariance of the differences at two looks is the variance of the later one, as the theory needs.
    """
    last = max(planned for _, planned in rows)
    noise = [sum(1 / min(number, planned) + 1 / n for n, planned in rows) for number in range(1, last + 1)]
    looks: dict[int, float] = {}
    reached = 0.0
    for number, one in enumerate(noise, start=1):
        share = noise[-1] / one
        if number == last or (share - reached >= LEAST_GAIN and 1 - share >= LEAST_GAIN):
            looks[number] = reached = share
    return looks


@lru_cache(maxsize=16)
def critical_values(shares: tuple[float, ...], alpha: float = ALPHA) -> list[float]:
    """The bound on |z| at each look, for looks at these ``shares`` of the information, the last 1.

    If nothing differs, the looks up to share t exceed their bounds with probability alpha · t^1.5 (a spending
    function of Kim and DeMets 1987, Biometrika 74; Lan and DeMets 1983, Biometrika 70). Numerical integration
    as by Armitage, McPherson and Rowe (1969, JRSS A 132), of the score z · √t.
    """
    values: list[float] = []
    density = [(0.0, 1.0)]  # points and weights of the scores that have exceeded no bound so far
    before, spent = 0.0, 0.0
    for share in shares:
        gain, scale = NormalDist(0, math.sqrt(share - before)), math.sqrt(share)
        target = alpha * share**POWER - spent
        values.append(bisect_left(range(8000), -target, key=partial(_kept, density, gain, scale)) / 1000)
        bound = values[-1] * scale
        steps = math.ceil(2 * bound / _STEP)
        step = 2 * bound / steps
        ats = [-bound + number * step for number in range(steps + 1)]
        weights = [step * sum(weight * gain.pdf(at - origin) for origin, weight in density) for at in ats]
        weights[0], weights[-1] = weights[0] / 2, weights[-1] / 2  # the trapezoidal rule
        density = [*zip(ats, weights, strict=True)]
        before, spent = share, spent + target
    return values


def _kept(density: Sequence[tuple[float, float]], gain: NormalDist, scale: float, z: int) -> float:
    """Minus the chance that the next score is beyond a bound, which is given in thousandths of ``scale``."""
    bound = z * scale / 1000
    return -sum(weight * (gain.cdf(-bound - at) + gain.cdf(at - bound)) for at, weight in density)


@lru_cache(maxsize=4096)
def chance_of_loss(n: int, m: int, x: int) -> float:
    """The largest chance, over all success rates p, of n successes in n rollouts and then at most x in m.

    It bounds the error of calling a row worse that always succeeded in the baseline.
    """
    rates = [number / 1000 for number in range(1, 1000)]
    return max(p**n * (beta_cdf(1 - p, m - x, x + 1) if x < m else 1.0) for p in rates)


# -- differences that can be shown

CORRELATION = 0.8
"""Assumed if there is one evaluation: agents find much the same rows hard."""


@dataclass(frozen=True, slots=True)
class RowRates:
    """Success rates of rows: their mean, standard deviation, and correlation between two agents."""

    mean: float
    spread: float
    correlation: float = CORRELATION

    def smallest_difference(
        self, rows: int, rollouts: int, power: float
    ) -> tuple[float | None, float | None]:
        """The differences shown with this ``power`` at 5 %: on these tasks, and on tasks like these.

        The standard error times the sum of the normal quantiles of the power and of 97.5 %. None if the rates
        leave no room for such a difference.
        """
        quantiles = NormalDist().inv_cdf(power) + NormalDist().inv_cdf(0.975)
        between = 2 * self.spread**2 * (1 - self.correlation) / rows
        between += (self.mean**2 + (1 - self.mean) ** 2) / (rows + 1) ** 2
        found: list[float | None] = []
        for variance in (0.0, between):
            low, high = 0.0, max(self.mean, 1 - self.mean)
            room = high >= quantiles * math.sqrt(variance + self._within(high, rollouts) / (rows * rollouts))
            for _ in range(40):  # the variance within B's rows depends on the difference
                size = (low + high) / 2
                within = self._within(size, rollouts) / (rows * rollouts)
                enough = size >= quantiles * math.sqrt(variance + within)
                low, high = (low, size) if enough else (size, high)
            found.append(high if room else None)
        return found[0], found[1]

    def smallest_margin(self, rows: int, rollouts: int, power: float) -> float:
        """The margin within which equal agents are shown to be, with this ``power``, on these tasks.

        Two one-sided tests at 5 %: the standard error times the sum of the normal quantiles of 95 % and of
        (1 + power) / 2.
        """
        quantiles = NormalDist().inv_cdf(0.95) + NormalDist().inv_cdf((1 + power) / 2)
        number = 2 * rollouts  # of a row in both evaluations; estimated as in sequential.decide
        spread = self._within(0.0, rollouts) / 2
        jeffreys = (number * (number * spread + 0.5) + 0.25) / ((number + 1) * (number + 2))
        return quantiles * math.sqrt(2 * max(spread, jeffreys) / (rows * rollouts))

    def _within(self, difference: float, rollouts: int) -> float:
        other = self.mean + math.copysign(difference, 0.5 - self.mean)
        spread = self.spread if rollouts > 1 else 0.0  # of one rollout nobody can tell the rows' rates
        return sum(max(mean * (1 - mean) - spread**2, 0.0) for mean in (self.mean, other))


def row_rates(
    counts: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]] | None = None
) -> RowRates | None:
    """Estimate the rates from each row's ``(n, c)``, and those of another evaluation of the same rows.

    The correlation is that of the rows' rates with the variance of rollouts taken out. None without two rows,
    or if no row has two rollouts: the spread of rows could not be distinguished from chance.
    """
    sides = [counts] if other is None else [counts, other]
    if len(counts) < 2 or any(max(n for n, _ in side) < 2 for side in sides):
        return None
    rates = [[c / n for n, c in side] for side in sides]
    means = [fmean(side) for side in rates]
    fitted = [RowCounts(side).prior for side in sides]
    variances = [mean * (1 - mean) / (a + b + 1) for mean, (a, b) in zip(means, fitted, strict=True)]
    found = RowRates(fmean(means), math.sqrt(fmean(variances)))
    if other is None or min(variances) == 0:
        return found
    ratio = covariance(*rates) / math.sqrt(math.prod(variances))
    return replace(found, correlation=min(max(ratio, 0.0), 1.0))
