"""Lists: the evaluations of a runs folder, the rollouts of a row, the groups of an evaluation."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import count, one_line
from reward_kit.agent.reports.facts import INTERVALS, LONGEST_STRATEGY, strategy, title_line
from reward_kit.agent.reports.tables import table_lines
from reward_kit.agent.scoring.groups import Group
from reward_kit.agent.scoring.metrics import mean, shown_ks
from reward_kit.agent.scoring.numbers import NOTHING, money, pass_cells, score
from reward_kit.agent.store.evaluation_file import stored_files
from reward_kit.agent.store.stored_evaluation import load_evaluation
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.store.results import EvaluationResult
    from reward_kit.agent.store.stored_evaluation import StoredEvaluation

EVALUATION_HEADINGS = (
    "evaluation", "dataset", "rollouts", "Pass^1", "cost", "status", "started", "agent (model)"
)  # fmt: skip
EVALUATION_NUMBERS = frozenset({2, 3, 4})
"""Columns of numbers."""
ROLLOUT_HEADINGS = ("evaluation", "number", "reward", "result", "id")
LONGEST_VALUE, SHOWN_ID = 40, 12
"""Characters of a value, and of a rollout's id, which are enough to name it."""


def evaluation_lines(evals: Path, width: int | None) -> Iterator[str]:
    """A table of the evaluations in ``evals``, the newest first; then a line on each unreadable one.

    Columns for which ``width`` (None: unlimited) has no room are left out.
    """
    found, faults = read_evaluations(evals)
    if found:
        rows = [EVALUATION_HEADINGS, *map(evaluation_cells, reversed(found))]
        yield from table_lines(rows, right=EVALUATION_NUMBERS, width=width, drop=(4, 6, 5, 2))
    yield from faults


def read_evaluations(evals: Path) -> tuple[list[StoredEvaluation], list[str]]:
    """The evaluations in ``evals``, the earliest first, and a line on each that cannot be read."""
    found, faults = [], []
    for file in stored_files(evals):
        try:
            found.append(load_evaluation(file))
        except StorageError as error:
            faults.append(f"{file.stem}: {one_line(error.fault)}")
    return sorted(found, key=lambda stored: stored.created), faults


def evaluation_cells(stored: StoredEvaluation) -> tuple[str, ...]:
    """The cells below ``EVALUATION_HEADINGS``."""
    unjudged = sum(not outcome.scored for outcome in stored.outcomes)
    rates = [rate for row in stored.rows if (rate := row.pass_power(1)) is not None]
    return (
        stored.eval_id,
        dataset_name(stored),
        f"{len(stored.outcomes)}/{stored.planned}",
        score(mean(rates)),
        money(stored.spent),
        f"{stored.status}, {unjudged} not judged" if unjudged else stored.status,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(stored.created)),
        one_line(strategy(stored), LONGEST_STRATEGY),
    )


def dataset_name(stored: StoredEvaluation) -> str:
    """The bundle's folder, and the dataset's file unless it has the usual name."""
    path = Path(str(stored.configuration.get("dataset") or ""))
    usual = path.suffix != ".jsonl" or path.stem == "task"
    folder = path.name if path.suffix != ".jsonl" else path.absolute().parent.name
    return one_line(folder if usual else f"{folder}/{path.name}", LONGEST_VALUE) or NOTHING


def rollout_lines(evals: Path, row_id: str, width: int | None = None) -> Iterator[str]:
    """A table of a row's rollouts in all evaluations, the newest first; then damaged files."""
    evaluations, faults = read_evaluations(evals)
    found = [
        (one, stored.eval_id) for stored in evaluations for one in stored.outcomes if one.row_id == row_id
    ]
    found.sort(key=lambda each: each[0].started, reverse=True)
    rows = [ROLLOUT_HEADINGS, *(_rollout_cells(*each) for each in found)]
    yield from table_lines(rows, width=width, drop=(1,))
    yield from faults


def _rollout_cells(outcome: Outcome, evaluation: str) -> tuple[str, ...]:
    attempt = f", attempt {outcome.attempt + 1}" if outcome.attempt else ""
    return (
        evaluation,
        f"{outcome.index + 1}{attempt}",
        NOTHING if outcome.reward is None else f"{outcome.reward:g}",
        "reward_error" if outcome.error is not None else outcome.failure or outcome.stop_reason,
        outcome.id[:SHOWN_ID],
    )


def stored_rows(evals: Path) -> set[str]:
    """The ids of all rows that have rollouts; damaged files are skipped."""
    return {outcome.row_id for stored in read_evaluations(evals)[0] for outcome in stored.outcomes}


def group_lines(result: EvaluationResult, field: str, width: int | None = None) -> Iterator[str]:
    """A title, then a table of the groups of rows by ``field`` and of all rows."""
    groups = result.by(field)
    heading, *lines = groups_table(result, field, groups)
    yield title_line(result)
    yield ""
    right = [at for at in range(1, len(heading)) if heading[at] != "Pass^1"]
    yield from table_lines([heading, *lines], right=right, width=width)
    if any(one.intervals.tasks_like_these for one in result.pass_power.values()):
        yield INTERVALS
    yield from group_notes(result, groups)


def groups_table(result: EvaluationResult, field: str, groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """Headings, a line for each group, and one for all rows of the evaluation."""
    ks = shown_ks(max((k for group in groups for k in group.pass_power), default=0))
    table: list[tuple[str, ...]] = [
        (one_line(field, LONGEST_VALUE), "rows", "judged", *(f"Pass^{k}" for k in ks), "reward")
    ]
    for group in (*groups, Group("all", result.rows, result.passes, result.averages.reward)):
        judged = f"{group.n_scored}/{sum(row.planned for row in group.rows)}"
        powers = pass_cells(group.pass_power, ks)
        reward = score(group.reward.value if group.reward else None)
        table.append((_label(group.value), str(len(group.rows)), judged, *powers, reward))
    return table


def _label(value: object) -> str:
    if value is None:
        return "(none)"
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), LONGEST_VALUE)


def group_notes(result: EvaluationResult, groups: Sequence[Group]) -> Iterator[str]:
    """Notes on rows that are in several of the ``groups``, or in none."""
    begun = sum(bool(row.outcomes) for row in result.rows)
    if sum(len(group.rows) for group in groups) > begun:
        yield "Rows with several values count in each of their groups."
    if begun < len(result.rows):
        yield f"In no group: {count(len(result.rows) - begun, 'row')} without a finished rollout."
