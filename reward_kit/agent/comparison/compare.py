"""Compare stored evaluations row by row."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.text import html_table
from reward_kit.agent.comparison.card import load_card
from reward_kit.agent.comparison.measures import (
    CHANGED,
    CONTENT,
    Measure,
    RowPair,
    changed_parts,
    measures_of,
    metrics_of,
)
from reward_kit.agent.config import OPTIONS, flag_of
from reward_kit.agent.rollout.outcome import BrokenOff
from reward_kit.agent.scoring.metrics import row_result
from reward_kit.agent.store.layout import Named, load_evaluation, origin_of
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.comparison.measures import PairedDifference
    from reward_kit.agent.scoring.metrics import RowResult
    from reward_kit.agent.store.results import EvaluationResult

FORMAT = "reward-kit.comparison/1"
SEVERAL_FORMAT = "reward-kit.comparisons/1"
IRRELEVANT = ("platform",)
"""Versions that do not affect results."""


class Setting(NamedTuple):
    """An option or version that differs; ``a`` and ``b`` as text."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class EvaluationComparison:
    """Evaluation B compared with evaluation A.

    ``rows`` are the compared rows, ``left_out`` the ids of the others by reason. ``changed`` are rows with
    other content (``changed_fields``: the fields of the first of them), ``tools`` those with other tools.
    ``code`` maps each changed module to its fingerprints in A and B (None: absent). ``metrics`` are those
    that the reward returned in either.
    """

    a: EvaluationResult
    b: EvaluationResult
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
        """Difference of Pass^1, which decides the verdicts."""
        difference = self.measures[0].difference
        assert difference is not None, "every compared row has judged rollouts"
        return difference

    @property
    def worse(self) -> list[RowPair]:
        """Rows that succeed less often in B, the largest change first."""
        return sorted((row for row in self.rows if row.difference < 0), key=lambda row: row.difference)

    @property
    def better(self) -> list[RowPair]:
        """Rows that succeed more often in B, the largest change first."""
        return sorted((row for row in self.rows if row.difference > 0), key=lambda row: -row.difference)

    @property
    def unjudged(self) -> tuple[int, int]:
        """Rollouts without a reward in A and in B, of their common rows."""
        both = {row.row_id for row in self.a.rows} & {row.row_id for row in self.b.rows}
        a, b = (
            sum(row.unjudged.total() for row in stored.rows if row.row_id in both)
            for stored in (self.a, self.b)
        )
        return a, b

    def __repr__(self) -> str:
        return f"<EvaluationComparison {self._caption}>"

    @property
    def _caption(self) -> str:
        these, like = self.success.verdicts
        return f"A {self.a.eval_id}, B {self.b.eval_id}: {these} on these tasks, {like} on tasks like these"

    def _repr_html_(self) -> str:
        """The measures, for notebooks."""
        rows = [(one.name, one.a, one.b, one.difference and one.difference.value) for one in self.measures]
        return html_table(self._caption, ("", "A", "B", "B - A"), rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "a": _named(self.a),
            "b": _named(self.b),
            "verdicts": self.success.verdicts._asdict(),
            "settings": [setting._asdict() for setting in self.settings],
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
    """Compare evaluation ``b`` with ``a``: names in ``output_dir``, paths (also of cards), or results of
    ``evaluate``.

    Branches are compared with the one rollout that they continue from, if ``a`` has it.

    Rows with changed fields or seed are left out unless ``changed_rows`` is set. Unjudged rollouts count as
    failed only if both evaluations were configured so. Raises ``UsageError`` for an unknown evaluation or
    without comparable rows, ``StorageError`` for a damaged file.
    """
    return _compared(load(a, output_dir), load(b, output_dir), changed_rows)


def load(name: Named, output_dir: str | Path) -> EvaluationResult:
    """The evaluation, or the numbers of a card.

    Raises ``UsageError`` if there is none, or for a card that contradicts itself.
    """
    if isinstance(name, str | os.PathLike):
        path = Path(name)
        if path.suffix == ".json" and path.is_file() and not path.with_suffix(".db").is_file():
            return load_card(path)
    return load_evaluation(name, output_dir)


@dataclass(frozen=True, slots=True)
class BaselineComparison:
    """Several evaluations compared with one baseline, which is A in each comparison."""

    baseline: EvaluationResult
    comparisons: tuple[EvaluationComparison, ...]

    def __repr__(self) -> str:
        others = ", ".join(one.b.eval_id for one in self.comparisons)
        return f"<BaselineComparison of {others} with {self.baseline.eval_id}>"

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
    """Compare each of ``others`` with ``baseline``, which is skipped among them; otherwise as ``compare``."""
    one = load(baseline, output_dir)
    named = others if isinstance(others, Sequence) and not isinstance(others, str) else [others]
    loaded = [load(other, output_dir) for other in named]
    compared = tuple(
        _compared(one, other, changed_rows)
        for other in loaded
        if other.log_path.absolute() != one.log_path.absolute()
    )
    if not compared:
        raise UsageError("nothing to compare with", place=one.eval_id, remedy="Name other evaluations.")
    return BaselineComparison(one, compared)


def _compared(one: EvaluationResult, other: EvaluationResult, changed_rows: bool) -> EvaluationComparison:
    one = _origin_alone(one, other)
    strict = all(stored.configuration.get("errors_as_failures") for stored in (one, other))
    pairs, left_out = pair_rows(one, other, changed_rows=changed_rows, errors_as_failures=strict)
    changed = changed_rows_between(one, other)
    fields = changed_fields(one, other, changed[0]) if changed else []
    if not pairs:
        reasons = ", ".join(f"{len(ids)} {reason}" for reason, ids in left_out.items())
        what = f" (fields: {', '.join(fields)})" if fields else ""
        if not fields and {*changed_rows_between(one, other, parts=("seed",))} & {*left_out.get(CHANGED, ())}:
            what = " (their seed; a seed that reads the clock changes daily unless the row has a `now`)"
        raise UsageError(
            f"no row can be compared: {reasons or 'there are none'}{what}",
            place=f"{one.eval_id} and {other.eval_id}",
            remedy="Add --changed-rows to compare changed rows." if CHANGED in left_out else None,
        )
    modules = {name: (one.code.get(name), other.code.get(name)) for name in {**one.code, **other.code}}
    return EvaluationComparison(
        a=one,
        b=other,
        rows=tuple(pairs),
        left_out={reason: tuple(ids) for reason, ids in left_out.items()},
        settings=tuple(different_settings(one, other)),
        code={name: (before, now) for name, (before, now) in modules.items() if before != now},
        measures=tuple(measures_of(pairs)),
        metrics=tuple(metrics_of(pairs)),
        changed=tuple(changed),
        changed_fields=tuple(fields),
        tools=tuple(changed_rows_between(one, other, parts=("tools",))),
    )


def _origin_alone(one: EvaluationResult, other: EvaluationResult) -> EvaluationResult:
    """Of an evaluation, the rollout that those of ``other`` are branches of; all of it if they are none."""
    origin = origin_of(other.configuration.get("branch_of"))
    if origin is None or origin.evaluation != one.eval_id:
        return one
    found = [outcome for outcome in one.outcomes if outcome.id == origin.rollout]
    if not found:
        return one
    strict = bool(one.configuration.get("errors_as_failures"))
    row = row_result(found[0].row_id, 1, found, errors_as_failures=strict)
    return replace(one, rows=(row,), usage=found[0].usage, broken_off=BrokenOff())


def pair_rows(
    a: EvaluationResult, b: EvaluationResult, *, changed_rows: bool, errors_as_failures: bool
) -> tuple[list[RowPair], dict[str, list[str]]]:
    """Return the row pairs in A's order, and the ids of other rows by the reason for leaving them out."""
    rows_a, rows_b = (
        {row.row_id: row.recounted(errors_as_failures=errors_as_failures) for row in one.rows}
        for one in (a, b)
    )
    changed = set() if changed_rows else set(changed_rows_between(a, b))
    pairs = []
    left_out: dict[str, list[str]] = {}
    for row_id in dict.fromkeys([*rows_a, *rows_b]):
        one, other = rows_a.get(row_id), rows_b.get(row_id)
        reason = CHANGED if row_id in changed else _reason(one, other)
        if reason is not None:
            left_out.setdefault(reason, []).append(row_id)
        elif one is not None and other is not None:
            pairs.append(RowPair(one, other))
    return pairs, left_out


def changed_rows_between(
    a: EvaluationResult, b: EvaluationResult, parts: Sequence[str] = CONTENT
) -> list[str]:
    """Return the rows of both evaluations that differ in ``parts`` of their fingerprints."""
    return [
        row_id
        for row_id, before in a.fingerprints.items()
        if (now := b.fingerprints.get(row_id)) is not None and changed_parts(before, now, parts)
    ]


def changed_fields(a: EvaluationResult, b: EvaluationResult, row_id: str) -> list[str]:
    """Return the names of a row's changed fields; a card has none."""
    before, now = (one.fields_of(row_id) or {} if one.log_path.suffix == ".db" else {} for one in (a, b))
    if not before or not now:
        return []
    return [name for name in {**before, **now} if name != "n_rollouts" and before.get(name) != now.get(name)]


def _reason(a: RowResult | None, b: RowResult | None) -> str | None:
    if a is None or b is None:
        return "only in A" if b is None else "only in B"
    for what, numbers in (("run", (a.finished, b.finished)), ("judged", (a.n_scored, b.n_scored))):
        if wanting := [side for side, number in zip("AB", numbers, strict=True) if not number]:
            return f"not {what} in {' and '.join(wanting)}"
    return None


def _named(stored: EvaluationResult) -> dict[str, Any]:
    return {
        "eval_id": stored.eval_id,
        "path": str(stored.log_path),
        "status": stored.status,
        "agent": stored.configuration.get("agent"),
        "model": stored.asked_model,
    }


def different_settings(a: EvaluationResult, b: EvaluationResult) -> Iterator[Setting]:
    """Yield differing options that affect results, and versions."""
    before, now = ({**one.configuration, "model": one.asked_model} for one in (a, b))
    options = [name for name, option in OPTIONS.items() if option.fixed or option.scored]
    options.remove("branch_of")  # the heads of the report name the origin
    pairs = [(flag_of(name), before[name], now[name]) for name in options if name in before and name in now]
    left, right = (origin_of(side.get("branch_of")) for side in (before, now))
    if left is not None and right is not None:
        was, is_now = (f"{side.evaluation} {side.rollout[:12]}@{side.step}" for side in (left, right))
        pairs += [("branch of", was, is_now), ("--tool-result", left.tool_result, right.tool_result)]
    pairs += [
        (f"version of {name}", version, b.versions[name])
        for name, version in a.versions.items()
        if name in b.versions and name not in IRRELEVANT
    ]
    for name, one, other in pairs:
        if one != other:
            yield Setting(name, _shown(one), _shown(other))


def _shown(value: Any) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
