"""The page of an evaluation, with scores, failures and rollouts; and the list of all evaluations."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from reward_kit.agent.reports.facts import (
    facts_of,
    interval_lines,
    left_out_lines,
    means_line,
    row_cells,
    title_line,
    tool_faults,
    what_went_wrong,
)
from reward_kit.agent.reports.listings import (
    EVALUATION_HEADINGS,
    EVALUATION_NUMBERS,
    evaluation_cells,
    group_notes,
    groups_table,
)
from reward_kit.agent.scoring.groups import metadata_groups
from reward_kit.agent.scoring.metrics import shown_ks
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.scoring.results import EvaluationResult
    from reward_kit.agent.scoring.rows import RowResult
    from reward_kit.agent.storage.stored_evaluation import StoredEvaluation

REFRESH = 5
"""Seconds after which the page of a running evaluation reloads."""
MOST_OF_A_KIND = 50
"""Failed rollouts of one class that are listed; the table of rows has all."""
UNFOLDED = 10
"""A class of more than these is folded."""
MOST_GROUP_LINES = 12
"""Tables by group with more lines in all are folded, so that the rows stay in sight."""
CHOICES = {
    "always": "passed always",
    "sometimes": "passed sometimes",
    "never": "never passed",
    "open": "not judged",
}
"""Kinds of rows; the table shows all or one kind (without a script: see style.css)."""


def evaluations_values(
    found: Sequence[StoredEvaluation], faults: Sequence[str], folder: Path
) -> dict[str, Any]:
    """The values of ``evaluations.html``, the last evaluation first; ``faults`` describe unreadable ones."""
    return {
        "title": "Evaluations",
        "root": "",
        "folder": folder,
        "headings": list(enumerate(EVALUATION_HEADINGS)),
        "right": EVALUATION_NUMBERS,
        "evaluations": [(one, list(enumerate(evaluation_cells(one)))) for one in reversed(found)],
        "faults": faults,
        "refresh": REFRESH if any(one.status == "running" for one in found) else None,
    }


def evaluation_values(result: StoredEvaluation) -> dict[str, Any]:
    """The values of ``evaluation.html``."""
    rows = [(row, _kind(row), row_cells(row), what_went_wrong(row)) for row in result.rows]
    came_out = Counter(kind for _, kind, _, _ in rows)
    groups = _groups(result)
    ks = shown_ks(max(result.pass_power, default=0))
    return {
        "title": result.eval_id,
        "root": "../",
        "stored": result,
        "headline": title_line(result),
        "passes": [(k, result.pass_power[k], result.pass_at[k]) for k in ks],
        "facts": list(facts_of(result)),
        "tool_faults": list(tool_faults(result)),
        "groups": groups,
        "show_groups": sum(len(table) for table, _ in groups) <= MOST_GROUP_LINES,
        "notes": list(_notes(result)),
        "rows": rows,
        "choices": {kind: (name, came_out[kind]) for kind, name in CHOICES.items() if came_out[kind]},
        "means": means_line(result.rows),
        "failed": _failed(result),
        "most": MOST_OF_A_KIND,
        "unfolded": UNFOLDED,
        "configuration": {name: value for name, value in result.configuration.items() if value is not None},
        "refresh": REFRESH if result.status == "running" else None,
    }


def _notes(result: EvaluationResult) -> Iterator[str]:
    yield from interval_lines(result)
    yield from left_out_lines(result)


def _groups(result: EvaluationResult) -> list[tuple[list[tuple[str, ...]], list[str]]]:
    """A table of scores, with notes, by each metadata field that makes groups."""
    if result.status == "running":  # the page reloads often
        return []
    try:
        found = metadata_groups(result.row_fields())
    except StorageError:  # only the results were shared
        return []
    return [
        (groups_table(result, field, groups), list(group_notes(result, groups)))
        for field, groups in found.items()
    ]


def _kind(row: RowResult) -> str:
    """One of ``CHOICES``."""
    if row.judged == 0:
        return "open"
    return "never" if row.passed == 0 else "always" if row.passed == row.judged else "sometimes"


def _failed(result: EvaluationResult) -> list[tuple[str, list[RolloutOutcome]]]:
    """The rollouts that did not pass, by class or reason, the most frequent first."""
    kinds: defaultdict[str, list[RolloutOutcome]] = defaultdict(list)
    for outcome in result.outcomes:
        if not outcome.success:
            kinds[outcome.unjudged_reason or outcome.failure or "other"].append(outcome)
    return sorted(kinds.items(), key=lambda entry: -len(entry[1]))
