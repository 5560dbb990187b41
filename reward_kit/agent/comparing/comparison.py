"""Comparing stored evaluations, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.comparing.measures import Measure, measures_of, metrics_of
from reward_kit.agent.comparing.row_pairs import (
    CHANGED,
    RowPair,
    changed_between,
    changed_fields,
    changed_seed,
    changed_tools,
    pair_rows,
)
from reward_kit.agent.comparing.settings import Setting, different_code, different_settings
from reward_kit.agent.results import asked_model
from reward_kit.agent.runs.stored_evaluation import Named, StoredEvaluation, load_evaluation
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from reward_kit.agent.comparing.paired import PairedDifference

FORMAT = "reward-kit.comparison/1"
SEVERAL_FORMAT = "reward-kit.comparisons/1"


@dataclass(frozen=True, slots=True)
class EvaluationComparison:
    """Evaluation B beside evaluation A.

    ``rows`` are those compared, ``left_out`` the ids of the others by reason. ``changed`` are rows whose
    content is another (``changed_fields``: what of the first of them), ``tools`` those whose tools are.
    ``code`` holds the fingerprints in A and B of each module that is not the same (None: not there).
    ``metrics`` are those that the reward returned in either.
    """

    a: StoredEvaluation
    b: StoredEvaluation
    rows: tuple[RowPair, ...]
    left_out: Mapping[str, tuple[str, ...]]
    settings: tuple[Setting, ...]
    code: Mapping[str, tuple[str | None, str | None]]
    measures: tuple[Measure, ...]
    metrics: tuple[Measure, ...] = ()
    changed: tuple[str, ...] = ()
    changed_fields: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()

    @property
    def success(self) -> PairedDifference:
        """The difference of Pass^1, by which B is ``better``, ``worse``, or neither."""
        difference = self.measures[0].difference
        assert difference is not None, "every row that is compared has judged rollouts"
        return difference

    @property
    def worse(self) -> list[RowPair]:
        """The rows that succeed less often in B, those that changed most first."""
        return sorted((row for row in self.rows if row.difference < 0), key=lambda row: row.difference)

    @property
    def better(self) -> list[RowPair]:
        """The rows that succeed more often in B, those that changed most first."""
        return sorted((row for row in self.rows if row.difference > 0), key=lambda row: -row.difference)

    @property
    def unjudged(self) -> tuple[int, int]:
        """Rollouts without a reward in A and in B, of the rows that both have."""
        both = {row.row_id for row in self.a.rows} & {row.row_id for row in self.b.rows}
        a, b = (
            sum(row.unjudged.total() for row in stored.rows if row.row_id in both)
            for stored in (self.a, self.b)
        )
        return a, b

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "a": _named(self.a),
            "b": _named(self.b),
            "verdict": self.success.verdict,
            "settings": [setting.to_json() for setting in self.settings],
            "code": {name: {"a": a, "b": b} for name, (a, b) in self.code.items()},
            "measures": [measure.to_json() for measure in self.measures],
            "metrics": [metric.to_json() for metric in self.metrics],
            "unjudged": dict(zip("ab", self.unjudged, strict=True)),
            "left_out": {reason: list(ids) for reason, ids in self.left_out.items()},
            "changed": list(self.changed),
            "changed_tools": list(self.tools),
            "rows": [row.to_json() for row in self.rows],
        }


def compare(
    a: Named, b: Named, *, output_dir: str | Path = "runs", changed_rows: bool = False
) -> EvaluationComparison:
    """Compare evaluation ``b`` with ``a``: names in ``output_dir``, paths of logs or results, or results as
    ``agent_eval`` returned them.

    Rows whose fields or seed have changed are left out unless ``changed_rows`` is given. Rollouts that could
    not be judged count as failed only if both evaluations say so. Raises ``UsageError`` where an evaluation
    or a row to compare is missing, ``StorageError`` for a damaged file.
    """
    return _compared(load_evaluation(a, output_dir), load_evaluation(b, output_dir), changed_rows)


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """Several evaluations beside one, which is A in each of ``comparisons``; B are the others in order."""

    baseline: StoredEvaluation
    comparisons: tuple[EvaluationComparison, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": SEVERAL_FORMAT,
            "baseline": _named(self.baseline),
            "comparisons": [comparison.to_json() for comparison in self.comparisons],
        }


def compare_with(
    baseline: Named,
    others: Named | Sequence[Named],
    *,
    output_dir: str | Path = "runs",
    changed_rows: bool = False,
) -> BaselineComparison:
    """Compare each of ``others`` with ``baseline``, which is passed over among them. Else as ``compare``."""
    one = load_evaluation(baseline, output_dir)
    named = others if isinstance(others, Sequence) and not isinstance(others, str) else [others]
    loaded = [load_evaluation(other, output_dir) for other in named]
    compared = tuple(
        _compared(one, other, changed_rows)
        for other in loaded
        if other.path.absolute() != one.path.absolute()
    )
    if not compared:
        raise UsageError(
            "there is nothing to compare it with", place=one.eval_id, remedy="Name other evaluations."
        )
    return BaselineComparison(one, compared)


def _compared(one: StoredEvaluation, other: StoredEvaluation, changed_rows: bool) -> EvaluationComparison:
    strict = all(stored.configuration.get("errors_as_failures") for stored in (one, other))
    pairs, left_out = pair_rows(one, other, changed_rows=changed_rows, errors_as_failures=strict)
    changed = changed_between(one, other)
    fields = changed_fields(one, other, changed[0]) if changed else []
    if not pairs:
        raise _nothing_to_compare(one, other, left_out, fields)
    return EvaluationComparison(
        a=one,
        b=other,
        rows=tuple(pairs),
        left_out={reason: tuple(ids) for reason, ids in left_out.items()},
        settings=tuple(different_settings(one, other)),
        code=different_code(one, other),
        measures=tuple(measures_of(pairs)),
        metrics=tuple(metrics_of(pairs)),
        changed=tuple(changed),
        changed_fields=tuple(fields),
        tools=tuple(changed_tools(one, other)),
    )


def _nothing_to_compare(
    a: StoredEvaluation, b: StoredEvaluation, left_out: Mapping[str, list[str]], fields: list[str]
) -> UsageError:
    reasons = ", ".join(f"{len(ids)} {reason}" for reason, ids in left_out.items())
    what = f" (fields: {', '.join(fields)})" if fields else ""
    if not fields and any(changed_seed(a, b, row_id) for row_id in left_out.get(CHANGED, ())):
        what = " (their seed; one that reads the clock is another each day, unless the row has a `now`)"
    return UsageError(
        f"no row can be compared: {reasons or 'there are none'}{what}",
        place=f"{a.eval_id} and {b.eval_id}",
        remedy="Compare rows that have changed with --changed-rows." if CHANGED in left_out else None,
    )


def _named(stored: StoredEvaluation) -> dict[str, Any]:
    return {
        "eval_id": stored.eval_id,
        "path": str(stored.path),
        "status": stored.status,
        "agent": stored.configuration.get("agent"),
        "model": asked_model(stored.configuration, stored.usage, stored.outcomes),
    }
