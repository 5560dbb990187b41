"""Rows in both evaluations, their measures, and the paired differences with confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.scoring.metrics import Interval, mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.scoring.rows import RowResult

Unit = Literal["share", "score", "dollars", "tokens", "number", "seconds"]
Verdict = Literal["better", "worse", "no difference"]
CONTENT = ("row", "seed")
"""Fingerprints of a row's content: its fields, and its seeded database."""
MIN_ROWS = 6
"""Rows that a two-sided sign test needs for p < 0.05: all of six agree by chance 2 times in 64 (p = 0.03),
all of five 2 times in 32."""

_NORMAL = 1.959963984540054
_FEW = {1: 12.706204736, 2: 4.302652730, 3: 3.182446305, 4: 2.776445105}


@dataclass(frozen=True, slots=True)
class RowPair:
    """A row with judged rollouts in both evaluations."""

    a: RowResult
    b: RowResult

    @property
    def row_id(self) -> str:
        return self.a.row_id

    @property
    def difference(self) -> float:
        """The success rate in B minus that in A."""
        return self.b.passed / self.b.judged - self.a.passed / self.a.judged

    @property
    def weaker(self) -> RowResult:
        """The side that failed more often."""
        return self.a if self.difference > 0 else self.b

    def failed_rollout(self) -> RolloutOutcome | None:
        """Return a failed rollout of the weaker side, of its most frequent failure class."""
        failed = [outcome for outcome in self.weaker.outcomes if outcome.judged and not outcome.success]
        counted = self.weaker.failures
        return max(failed, key=lambda outcome: counted[outcome.failure or ""], default=None)

    def to_json(self) -> dict[str, Any]:
        failed = self.failed_rollout() if self.difference else None
        a, b = (
            {"judged": row.judged, "successes": row.passed, "reward": row.reward, "failures": row.failures}
            for row in (self.a, self.b)
        )
        return {
            "id": self.row_id,
            "difference": self.difference,
            "a": a,
            "b": b,
            "failed_rollout": failed.id if failed else None,
        }


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean over ``rows`` of B minus A, with its 95 % interval (None with fewer than two rows).

    ``differing`` counts the rows in which the two are not equal.
    """

    value: float
    interval: Interval | None
    rows: int
    differing: int

    @property
    def verdict(self) -> Verdict:
        """Verdict on B by the interval; more is better."""
        if self.interval is not None and self.interval.low > 0:
            return "better"
        if self.interval is not None and self.interval.high < 0:
            return "worse"
        return "no difference"

    @property
    def clearness(self) -> float:
        """Distance from zero in half widths of the interval; above 1 if the interval excludes zero."""
        if self.interval is None or self.value == 0:
            return 0.0
        half = (self.interval.high - self.interval.low) / 2
        return abs(self.value) / half if half else math.inf

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; ``low`` and ``high`` are null without an interval."""
        low, high = self.interval or (None, None)
        own = {"rows": self.rows, "differing": self.differing}
        return {"value": self.value, "low": low, "high": high, **own}


@dataclass(frozen=True, slots=True)
class Measure:
    """Mean over rows in A and in B of each row's mean over rollouts.

    ``difference`` is None if no row has a value on both sides; ``unpriced`` counts the calls without a known
    price in A and B, which make the cost unknown.
    """

    name: str
    unit: Unit
    a: float | None
    b: float | None
    difference: PairedDifference | None
    unpriced: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, Any]:
        difference = self.difference.to_json() if self.difference else None
        return {"name": self.name, "unit": self.unit, "a": self.a, "b": self.b, "difference": difference}


def measures_of(pairs: Sequence[RowPair]) -> Iterator[Measure]:
    """Yield all measures of the rows, Pass^1 first."""
    for k in range(1, max(min(pair.a.judged, pair.b.judged) for pair in pairs) + 1):
        yield _measure(pairs, f"Pass^{k}", "share", methodcaller("pass_power", k), most=1.0)
    yield _measure(pairs, "reward", "share", attrgetter("reward"))
    if not all(pair.a.outcomes and pair.b.outcomes for pair in pairs):
        return  # a card has counts only
    used = [usage for outcome in _outcomes(pairs) for usage in outcome.usage.items()]
    roles = {role for role, usage in used if usage.calls}
    if roles:
        yield _cost(pairs)
    for role in ("agent", "user", "judge"):
        if role in roles:
            yield _measure(pairs, f"{role} tokens", "tokens", _mean_of(partial(_tokens, role)))
    yield _measure(pairs, "steps", "number", _mean_of(attrgetter("steps")))
    yield _measure(pairs, "turns", "number", _mean_of(attrgetter("turns")))
    yield _measure(pairs, "time", "seconds", _mean_of(attrgetter("seconds")))


def metrics_of(pairs: Sequence[RowPair]) -> Iterator[Measure]:
    """Yield each metric of the rewards, over the rollouts that have it.

    If no row has it on both sides, there is no difference, and each mean is over the rows of its side. A
    card has none.
    """
    if not all(pair.a.outcomes and pair.b.outcomes for pair in pairs):
        return
    for name in dict.fromkeys(name for outcome in _outcomes(pairs) for name in outcome.metrics or ()):
        yield _measure(pairs, name, "score", methodcaller("metric", name))


def _measure(
    pairs: Sequence[RowPair],
    name: str,
    unit: Unit,
    of: Callable[[RowResult], float | None],
    *,
    most: float = math.inf,
) -> Measure:
    """Average over the rows with a value on both sides; values differ by at most ``most``.

    Numbers that overflow have no mean.
    """
    try:
        values = [(of(pair.a), of(pair.b)) for pair in pairs]
        both = [(a, b) for a, b in values if a is not None and b is not None]
        a, b = (
            mean([one for one in side if one is not None]) for side in zip(*(both or values), strict=True)
        )
        difference = mean_difference([b - a for a, b in both], most=most) if both else None
    except OverflowError:
        return Measure(name, unit, None, None, None)
    return Measure(name, unit, a, b, difference)


def _cost(pairs: Sequence[RowPair]) -> Measure:
    """Measure the cost of all roles together; one call without a price makes the sum unknown."""
    cost = _measure(pairs, "cost", "dollars", _mean_of(attrgetter("cost")))
    a, b = (
        sum(usage.unpriced_calls for row in rows for one in row.outcomes for usage in one.usage.values())
        for rows in ([pair.a for pair in pairs], [pair.b for pair in pairs])
    )
    difference = None if a or b else cost.difference
    return replace(
        cost, a=None if a else cost.a, b=None if b else cost.b, difference=difference, unpriced=(a, b)
    )


def _outcomes(pairs: Sequence[RowPair]) -> Iterator[RolloutOutcome]:
    return chain.from_iterable(chain(pair.a.outcomes, pair.b.outcomes) for pair in pairs)


def _mean_of(value: Callable[[RolloutOutcome], float]) -> Callable[[RowResult], float | None]:
    return lambda row: mean([value(outcome) for outcome in row.outcomes])


def _tokens(role: str, outcome: RolloutOutcome) -> float:
    usage = outcome.usage.get(role)
    return usage.input_tokens + usage.output_tokens if usage is not None else 0


def mean_difference(differences: Sequence[float], *, most: float = math.inf) -> PairedDifference:
    """Average the rows' differences (B minus A), with a 95 % interval.

    The standard error is sqrt(sum((d - mean)^2) / (n - 1) / n) over the n rows: the paired one, clustered by
    row, of Miller 2024, "Adding Error Bars to Evals" (arXiv 2411.00640). The rollouts of a row, which are not
    independent, enter through their mean alone. The interval uses Student's t with n - 1 degrees of freedom,
    since the normal distribution is too narrow for few rows (Bowyer, Aitchison and Ivanova 2025,
    arXiv 2503.01747), and is clipped to ``most``, the largest possible difference, on both sides. Raises
    ``ValueError`` without rows, ``OverflowError`` if a difference or its square overflows.
    """
    rows = len(differences)
    if not rows:
        raise ValueError("no rows")
    if not all(map(math.isfinite, differences)):
        raise OverflowError("the numbers are too large")
    mean = math.fsum(differences) / rows
    differing = sum(difference != 0 for difference in differences)
    if rows == 1:
        return PairedDifference(mean, None, rows, differing)
    if all(difference == differences[0] for difference in differences):
        same = differences[0]  # exact, unlike the rounded sum
        return PairedDifference(same, Interval(same, same), rows, differing)
    variance = math.fsum((difference - mean) ** 2 for difference in differences) / (rows - 1)
    half = student_t(rows - 1) * math.sqrt(variance / rows)
    interval = Interval(max(-most, mean - half), min(most, mean + half))
    return PairedDifference(mean, interval, rows, differing)


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t with ``freedom`` >= 1 degrees of freedom, to three decimals.

    From five on by the expansion of Fisher and Cornish (Abramowitz and Stegun 1964, 26.7.5).
    """
    if freedom in _FEW:
        return _FEW[freedom]
    z = _NORMAL
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum([z, *(term / float(freedom) ** power for power, term in enumerate(terms, start=1))])
