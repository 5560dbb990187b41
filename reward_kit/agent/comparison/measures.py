"""Measures of a row in both evaluations: Pass^k, reward and its metrics, cost, tokens, length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.comparison.paired import PairedDifference, mean_difference
from reward_kit.agent.scoring.metrics import mean

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reward_kit.agent.comparison.row_pairs import RowPair
    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.scoring.rows import RowResult

Unit = Literal["share", "score", "dollars", "tokens", "number", "seconds"]


@dataclass(frozen=True, slots=True)
class Measure:
    """Mean over rows in A and in B of each row's mean over rollouts.

    ``difference`` is None if no row has a value on both sides; ``unpriced`` counts the calls without a known
    price in A and B, which leave the cost unknown.
    """

    name: str
    unit: Unit
    a: float | None
    b: float | None
    difference: PairedDifference | None
    unpriced: tuple[int, int] = (0, 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "unit": self.unit,
            "a": self.a,
            "b": self.b,
            "difference": self.difference.to_json() if self.difference else None,
        }


def measures_of(pairs: Sequence[RowPair]) -> Iterator[Measure]:
    """Yield all measures of the rows, Pass^1 first."""
    for k in range(1, max(min(pair.a.judged, pair.b.judged) for pair in pairs) + 1):
        yield _measure(pairs, f"Pass^{k}", "share", _pass_power(k), most=1.0)
    yield _measure(pairs, "reward", "share", lambda row: row.reward)
    roles = {
        role for pair in pairs for one in _outcomes(pair) for role, usage in one.usage.items() if usage.calls
    }
    if roles:
        yield _cost(pairs)
    for role in ("agent", "user", "judge"):
        if role in roles:
            yield _measure(pairs, f"{role} tokens", "tokens", _tokens(role))
    yield _measure(pairs, "steps", "number", _mean_of(lambda outcome: outcome.steps))
    yield _measure(pairs, "turns", "number", _mean_of(lambda outcome: outcome.turns))
    yield _measure(pairs, "time", "seconds", _mean_of(lambda outcome: outcome.seconds))


def metrics_of(pairs: Sequence[RowPair]) -> Iterator[Measure]:
    """Yield each metric of the rewards, over the rollouts that have it.

    If no row has it on both sides, there is no difference, and each mean is over the rows of its side.
    """
    outcomes = (outcome for pair in pairs for outcome in _outcomes(pair))
    for name in dict.fromkeys(name for outcome in outcomes for name in outcome.metrics or ()):
        yield _measure(pairs, name, "score", _scores(name))


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
    unpriced = (_unpriced(pair.a for pair in pairs), _unpriced(pair.b for pair in pairs))
    cost = _measure(pairs, "cost", "dollars", _mean_of(lambda outcome: outcome.cost))
    a, b = (None if calls else value for calls, value in zip(unpriced, (cost.a, cost.b), strict=True))
    return Measure("cost", "dollars", a, b, None if any(unpriced) else cost.difference, unpriced)


def _unpriced(rows: Iterator[RowResult]) -> int:
    return sum(
        usage.unpriced_calls for row in rows for outcome in row.outcomes for usage in outcome.usage.values()
    )


def _outcomes(pair: RowPair) -> Iterator[RolloutOutcome]:
    yield from pair.a.outcomes
    yield from pair.b.outcomes


def _pass_power(k: int) -> Callable[[RowResult], float | None]:
    return lambda row: row.pass_power(k)


def _mean_of(value: Callable[[RolloutOutcome], float]) -> Callable[[RowResult], float | None]:
    return lambda row: mean([value(outcome) for outcome in row.outcomes])


def _scores(metric: str) -> Callable[[RowResult], float | None]:
    return lambda row: mean(
        [outcome.metrics[metric] for outcome in row.outcomes if outcome.metrics and metric in outcome.metrics]
    )


def _tokens(role: str) -> Callable[[RowResult], float | None]:
    def used(outcome: RolloutOutcome) -> float:
        usage = outcome.usage.get(role)
        return usage.input_tokens + usage.output_tokens if usage is not None else 0

    return _mean_of(used)
