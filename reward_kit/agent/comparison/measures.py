"""Rows in both evaluations, their measures, and the paired differences with confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reward_kit.agent.rollout.outcome import total_usage
from reward_kit.agent.scoring.intervals import Interval, Intervals, difference_intervals, mean_intervals
from reward_kit.agent.scoring.metrics import average, mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.scoring.metrics import RowResult

Unit = Literal["share", "score", "dollars", "tokens", "number", "seconds"]
Verdict = Literal["better", "worse", "no difference"]
CHANGED = "changed in between"
"""The reason for which changed rows are left out."""
ROLES = ("agent", "user", "judge")
CONTENT = ("row", "seed")
"""Fingerprints of a row's content: its fields, and its seeded database."""


@dataclass(frozen=True, slots=True)
class RowPair:
    """A row with judged rollouts in both evaluations."""

    a: RowResult
    b: RowResult

    def __repr__(self) -> str:
        a, b = (f"{row.passed}/{row.n_scored}" for row in (self.a, self.b))
        return f"<RowPair {self.row_id}: {a} -> {b}>"

    @property
    def row_id(self) -> str:
        return self.a.row_id

    @property
    def difference(self) -> float:
        """The success rate in B minus that in A."""
        return self.b.passed / self.b.n_scored - self.a.passed / self.a.n_scored

    @property
    def weaker(self) -> RowResult:
        """The side that failed more often."""
        return self.a if self.difference > 0 else self.b

    def failed_rollout(self) -> Outcome | None:
        """Return a failed rollout of the weaker side, of its most frequent failure class."""
        failed = [outcome for outcome in self.weaker.outcomes if outcome.scored and not outcome.success]
        counted = self.weaker.failures
        return max(failed, key=lambda outcome: counted[outcome.failure or ""], default=None)

    def to_json(self) -> dict[str, Any]:
        failed = self.failed_rollout() if self.difference else None
        a, b = (
            {"judged": row.n_scored, "successes": row.passed, "reward": row.reward, "failures": row.failures}
            for row in (self.a, self.b)
        )
        return {
            "id": self.row_id,
            "difference": self.difference,
            "a": a,
            "b": b,
            "failed_rollout": failed.id if failed else None,
        }


def changed_parts(
    before: Mapping[str, Any], now: Mapping[str, Any], parts: Sequence[str] = CONTENT
) -> list[str]:
    """The ``parts`` of a row's fingerprints that differ."""
    return [part for part in parts if before.get(part) != now.get(part)]


class Verdicts(NamedTuple):
    """Verdicts on B for both questions; more is better."""

    these_tasks: Verdict
    tasks_like_these: Verdict


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean over ``rows`` of B minus A, with its 95 % intervals.

    ``differing`` counts the rows in which the two are not equal.
    """

    value: float
    intervals: Intervals
    rows: int
    differing: int

    @property
    def verdicts(self) -> Verdicts:
        """ "Better" or "worse" if an interval excludes zero."""
        return Verdicts(*map(_verdict, self.intervals))

    @property
    def clearness(self) -> float:
        """Distance from zero in half widths of the wider interval, by which measures are ranked."""
        interval = self.intervals.tasks_like_these or self.intervals.these_tasks
        if interval is None:  # no spread, or a single rollout
            return math.inf if self.value and self.rows > 1 else 0.0
        return 2 * abs(self.value) / (interval.high - interval.low)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; an interval is ``{"low", "high"}``, or null if there is none."""
        own = {"rows": self.rows, "differing": self.differing}
        return {"value": self.value, **self.intervals.to_json(), **own}


def _verdict(interval: Interval | None) -> Verdict:
    if interval is None or interval.low <= 0 <= interval.high:
        return "no difference"
    return "better" if interval.low > 0 else "worse"


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
    for k in range(1, max(min(pair.a.n_scored, pair.b.n_scored) for pair in pairs) + 1):
        counts = [((pair.a.n, pair.a.c), (pair.b.n, pair.b.c)) for pair in pairs]
        powers = [
            [[one] if (one := row.pass_power(k)) is not None else [] for row in (pair.a, pair.b)]
            for pair in pairs
        ]
        yield _measure(f"Pass^{k}", "share", powers, difference_intervals(counts, k))
    yield _measure("reward", "share", [(pair.a.rewards, pair.b.rewards) for pair in pairs])
    if not all(pair.a.outcomes and pair.b.outcomes for pair in pairs):
        return  # a card has counts only
    used = [usage for outcome in _outcomes(pairs) for usage in outcome.usage.items()]
    roles = {role for role, usage in used if usage.calls}
    numbers: list[tuple[str, Unit, Callable[[Outcome], float]]] = [
        *([("cost", "dollars", attrgetter("cost"))] if roles else ()),
        *((f"{role} tokens", "tokens", partial(_tokens, role)) for role in ROLES if role in roles),
        ("steps", "number", attrgetter("steps")),
        ("turns", "number", attrgetter("turns")),
        ("time", "seconds", attrgetter("seconds")),
    ]
    for name, unit, of in numbers:
        values = [[[of(outcome) for outcome in row.outcomes] for row in (pair.a, pair.b)] for pair in pairs]
        measure = _measure(name, unit, values)
        yield _priced(measure, pairs) if name == "cost" else measure


def metrics_of(pairs: Sequence[RowPair]) -> Iterator[Measure]:
    """Yield each metric of the rewards, over the rollouts that have it.

    If no row has it on both sides, there is no difference, and each mean is over the rows of its side. A
    card has none.
    """
    if all(pair.a.outcomes and pair.b.outcomes for pair in pairs):
        for name in dict.fromkeys(name for outcome in _outcomes(pairs) for name in outcome.metrics or ()):
            yield _measure(name, "score", [(pair.a.scores(name), pair.b.scores(name)) for pair in pairs])


def _measure(
    name: str, unit: Unit, values: Sequence[Sequence[Sequence[float]]], intervals: Intervals | None = None
) -> Measure:
    """Average the rows' means over the rows with values on both sides; ``values`` are pairs of A and B.

    Shares and scores that are 0 or 1 have the intervals of Pass^1. Numbers that overflow have no mean.
    """
    both = [(a, b) for a, b in values if a and b]
    try:
        if not both:
            a, b = (mean([average(row) for row in side if row]) for side in zip(*values, strict=True))
            return Measure(name, unit, a, b, None)
        before, now = zip(*both, strict=True)
        if intervals is None and unit in ("share", "score") and set().union(*before, *now) <= {0, 1}:
            counts = [[(len(row), round(sum(row))) for row in pair] for pair in both]
            intervals = difference_intervals((a, b) for a, b in counts)
        intervals = intervals or mean_intervals(now, before)
        means = [(average(a), average(b)) for a, b in both]
        differences = [b - a for a, b in means]
        a, b = (average(side) for side in zip(*means, strict=True))
        value = math.fsum(differences) / len(both)
        differing = sum(difference != 0 for difference in differences)
        return Measure(name, unit, a, b, PairedDifference(value, intervals, len(both), differing))
    except OverflowError:
        return Measure(name, unit, None, None, None)


def _priced(cost: Measure, pairs: Sequence[RowPair]) -> Measure:
    """The cost, which one call without a price makes unknown, and so do no calls at all."""
    a, b = (
        total_usage(usage for row in rows for one in row.outcomes for usage in one.usage.values())
        for rows in ([pair.a for pair in pairs], [pair.b for pair in pairs])
    )
    x, y = (
        mean if used.calls and not used.unpriced_calls else None for mean, used in ((cost.a, a), (cost.b, b))
    )
    difference = None if x is None or y is None else cost.difference
    return replace(cost, a=x, b=y, difference=difference, unpriced=(a.unpriced_calls, b.unpriced_calls))


def _outcomes(pairs: Sequence[RowPair]) -> Iterator[Outcome]:
    return chain.from_iterable(chain(pair.a.outcomes, pair.b.outcomes) for pair in pairs)


def _tokens(role: str, outcome: Outcome) -> float:
    return outcome.usage[role].tokens if role in outcome.usage else 0
