"""An evaluation as a page: its scores, what went wrong, and every rollout; and the list of all there are."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from reward_kit.agent.groups import metadata_groups
from reward_kit.agent.pages.rendering import render
from reward_kit.agent.reports.evaluations_table import HEADINGS, RIGHT, evaluation_cells
from reward_kit.agent.reports.facts import (
    facts_of,
    left_out_lines,
    means_line,
    row_cells,
    title_line,
    what_went_wrong,
)
from reward_kit.agent.reports.failed_rollouts import tool_faults
from reward_kit.agent.reports.groups_table import group_notes, groups_table
from reward_kit.agent.runs.stored_result import stored_result
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.results import EvaluationResult, RowResult
    from reward_kit.agent.runs.stored_evaluation import StoredEvaluation

REFRESH = 5
"""Seconds between looks at an evaluation that is running."""
MOST_OF_A_KIND = 50
"""Failed rollouts of one class that are listed; all stand in the table of rows."""
UNFOLDED = 10
"""So many of a class are shown at once; of more there is the heading, to be unfolded."""
MOST_GROUP_LINES = 12
"""Lines of the tables by group that are shown at once: the rows are not to be pushed out of sight."""
CHOICES = {
    "always": "passed always",
    "sometimes": "passed sometimes",
    "never": "never passed",
    "open": "not judged",
}
"""How a row came out; the table shows all rows or those of one kind (without a script: see style.css)."""


def evaluations_page(found: Sequence[StoredEvaluation], faults: Sequence[str], folder: Path) -> str:
    """The evaluations of the runs folder ``folder``, the last first; ``faults`` tell what cannot be read."""
    return render(
        "evaluations.html",
        title="Evaluations",
        root="",
        folder=folder,
        headings=list(enumerate(HEADINGS)),
        right=RIGHT,
        evaluations=[(one, list(enumerate(evaluation_cells(one)))) for one in reversed(found)],
        faults=faults,
        refresh=REFRESH if any(one.status == "running" for one in found) else None,
    )


def evaluation_page(stored: StoredEvaluation) -> str:
    """Its report; raises ``StorageError`` where its results are damaged."""
    result = stored_result(stored)
    rows = [(row, _came_out(row), row_cells(row), what_went_wrong(row)) for row in result.rows]
    groups = _groups(result)
    came_out = Counter(kind for _, kind, _, _ in rows)
    return render(
        "evaluation.html",
        title=stored.eval_id,
        root="../",
        stored=stored,
        result=result,
        headline=title_line(result),
        facts=list(facts_of(result)),
        tool_faults=list(tool_faults(result)),
        groups=groups,
        show_groups=sum(len(table) for table, _ in groups) <= MOST_GROUP_LINES,
        notes=[*_brackets(result), *left_out_lines(result)],
        rows=rows,
        choices={kind: came_out[kind] for kind in CHOICES if kind in came_out},
        choice_names=CHOICES,
        means=means_line(result.rows),
        failed=_failed(result),
        most=MOST_OF_A_KIND,
        unfolded=UNFOLDED,
        configuration={name: value for name, value in stored.configuration.items() if value is not None},
        refresh=REFRESH if stored.status == "running" else None,
    )


def _brackets(result: EvaluationResult) -> Iterator[str]:
    """What the brackets are, where there are any."""
    if any(power.interval for power in result.pass_power.values()):
        yield "in brackets: 95 % interval by bootstrap over rows"


def _groups(result: EvaluationResult) -> list[tuple[list[tuple[str, ...]], list[str]]]:
    """A table of the scores by each field of metadata that is fit for it, with notes."""
    if result.status == "running":  # the page is read anew all the time; this reads a trajectory of each row
        return []
    seed = result.configuration.get("seed", 0)
    try:
        found = metadata_groups(result.rows, folder=result.folder, seed=seed)
    except StorageError:  # shared without its trajectories: everything else is known all the same
        return []
    return [
        (groups_table(result, field, groups), list(group_notes(result, groups)))
        for field, groups in found.items()
    ]


def _came_out(row: RowResult) -> str:
    """One of ``CHOICES``."""
    if row.n == 0:
        return "open"
    return "never" if row.c == 0 else "always" if row.c == row.n else "sometimes"


def _failed(result: EvaluationResult) -> list[tuple[str, list[RolloutOutcome]]]:
    """The rollouts that did not pass, by failure class or why they were not judged; most frequent first."""
    kinds: defaultdict[str, list[RolloutOutcome]] = defaultdict(list)
    for outcome in result.outcomes:
        if not outcome.success:
            kinds[outcome.unjudged_reason or outcome.failure or "other"].append(outcome)
    return sorted(kinds.items(), key=lambda entry: -len(entry[1]))
