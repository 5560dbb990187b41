"""Stored evaluations: their results, lists of them and of a row's rollouts, their groups and branches."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from reward_kit.agent.base.printing import table_lines
from reward_kit.agent.base.text import count, one_line
from reward_kit.agent.reports.facts import INTERVALS, LONGEST_STRATEGY, strategy, title_line
from reward_kit.agent.scoring.groups import Group
from reward_kit.agent.scoring.metrics import mean, shown_ks
from reward_kit.agent.scoring.numbers import NOTHING, bracketed, money, pass_cells, score
from reward_kit.agent.store.evaluation_file import reading, stored_files
from reward_kit.agent.store.layout import Origin, branches_in, load_evaluation, read_evaluation
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reward_kit.agent.store.results import EvaluationResult

LONGEST_VALUE, SHOWN_ID = 40, 12
"""Characters of a value, and of a rollout's id, which are enough to name it."""
DEEPEST = 20
"""Generations of branches that are shown; forged files may name each other."""
Place = tuple[str, str]
"""A rollout: the name of its evaluation, and its id."""


def evaluation_lines(evals: Path, width: int | None) -> Iterator[str]:
    """A table of the evaluations in ``evals``, the newest first; then a line on each unreadable one.

    Columns for which ``width`` (None: unlimited) has no room are left out.
    """
    found, faults = read_evaluations(evals, brief=True)
    if found:
        cells = [evaluation_cells(one) for one in reversed(found)]
        rows = [tuple(cells[0]), *(tuple(one.values()) for one in cells)]
        yield from table_lines(rows, right={2, 3, 4}, width=width, drop=(4, 6, 5, 2))
    yield from faults


def read_evaluations(evals: Path, *, brief: bool = False) -> tuple[list[EvaluationResult], list[str]]:
    """The evaluations in ``evals``, the earliest first, and a line on each that cannot be read."""
    found, faults = [], []
    for file in stored_files(evals):
        try:
            found.append(read_evaluation(file, brief=brief))
        except StorageError as error:
            faults.append(f"{file.stem}: {one_line(error.fault)}")
    return sorted(found, key=lambda stored: stored.created), faults


def evaluation_cells(stored: EvaluationResult) -> dict[str, str]:
    """The cells of an evaluation's line, by heading."""
    unjudged = sum(not outcome.scored for outcome in stored.outcomes)
    rates = [rate for row in stored.rows if (rate := row.pass_power(1)) is not None]
    return {
        "evaluation": stored.eval_id,
        "dataset": dataset_name(stored),
        "rollouts": f"{len(stored.outcomes)}/{stored.planned}",
        "Pass^1": score(mean(rates)),
        "cost": money(stored.spent),
        "status": f"{stored.status}, {unjudged} not judged" if unjudged else stored.status,
        "started": moment(stored.created),
        "agent (model)": one_line(strategy(stored), LONGEST_STRATEGY),
    }


def moment(seconds: float) -> str:
    """Unix seconds as the local date and time."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def dataset_name(stored: EvaluationResult) -> str:
    """The bundle's folder, and the dataset's file unless it has the usual name."""
    path = Path(str(stored.configuration.get("dataset") or ""))
    usual = path.suffix != ".jsonl" or path.stem == "task"
    folder = path.name if path.suffix != ".jsonl" else path.absolute().parent.name
    return one_line(folder if usual else f"{folder}/{path.name}", LONGEST_VALUE) or NOTHING


def rollout_lines(evals: Path, row_id: str, width: int | None = None) -> Iterator[str]:
    """A table of a row's rollouts in all evaluations, the newest of these first; then damaged files."""
    evaluations, faults = read_evaluations(evals)
    found = [(stored, one) for stored in reversed(evaluations) for one in stored.outcomes]
    rows: list[tuple[str, ...]] = [("evaluation", "dataset", "number", "reward", "result", "id")]
    for stored, one in (each for each in found if each[1].row_id == row_id):
        number = f"{one.index + 1}" + (f", attempt {one.attempt + 1}" if one.attempt else "")
        reward = NOTHING if one.reward is None else f"{one.reward:g}"
        result = "reward_error" if one.error is not None else one.failure or one.stop_reason
        rows.append((stored.eval_id, dataset_name(stored), number, reward, result, one.id[:SHOWN_ID]))
    yield from table_lines(rows, width=width, drop=(1, 2))
    yield from faults


def stored_rows(evals: Path) -> set[str]:
    """The ids of all rows that have rollouts; damaged files are skipped."""
    found: set[str] = set()
    for file in stored_files(evals):
        with suppress(StorageError), reading(file) as connection:
            found.update(row for (row,) in connection.execute("SELECT DISTINCT row_id FROM rollouts"))
    return found


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
    name = one_line(field, LONGEST_VALUE)
    table: list[tuple[str, ...]] = [(name, "rows", "judged", *(f"Pass^{k}" for k in ks), "reward")]
    for group in (*groups, Group("all", result.rows, result.passes, result.averages.reward)):
        value = group.value if isinstance(group.value, str) else json.dumps(group.value, ensure_ascii=False)
        label = "(none)" if group.value is None else one_line(value, LONGEST_VALUE)
        judged = f"{group.n_scored}/{sum(row.planned for row in group.rows)}"
        reward = score(group.reward.value if group.reward else None)
        table.append((label, str(len(group.rows)), judged, *pass_cells(group.pass_power, ks), reward))
    return table


def group_notes(result: EvaluationResult, groups: Sequence[Group]) -> Iterator[str]:
    """Notes on rows that are in several of the ``groups``, or in none."""
    begun = sum(bool(row.outcomes) for row in result.rows)
    if sum(len(group.rows) for group in groups) > begun:
        yield "Rows with several values count in each of their groups."
    if begun < len(result.rows):
        yield f"In no group: {count(len(result.rows) - begun, 'row')} without a finished rollout."


# -- branches


class TreeLine(NamedTuple):
    """A line of the tree: ``stem`` is drawn before the ``name``, which links to a page, and the ``text``.

    ``page`` is the address of that page without its ending; empty for a rollout that is gone.
    """

    stem: str
    name: str
    text: str
    page: str
    evaluation: str
    is_here: bool

    def __str__(self) -> str:
        return f"{self.stem}{self.name}: {self.text}{'  <- this one' if self.is_here else ''}"


def trees_of(evals: Path, evaluation: str, rollout: str | None = None) -> list[TreeLine]:
    """The tree that holds a rollout, or the trees of an evaluation: of its origin or its rollouts.

    Empty for a rollout that has no branches and is not one. Raises ``StorageError`` for a damaged file.
    """
    grown: dict[Place, list[tuple[Origin, Path]]] = {}
    origins: dict[str, Origin] = {}
    for origin, file in branches_in(evals):
        grown.setdefault((origin.evaluation, origin.rollout), []).append((origin, file))
        origins[file.stem] = origin

    def lines(root: Place) -> Iterator[TreeLine]:
        found = Origin(*root, 0).outcome(evals)
        if found is None:
            yield TreeLine("", root[0], "the rollout is gone", "", root[0], is_here=False)
        else:
            text = f"{found.verdict}, {count(found.steps, 'step')}"
            name, page = f"{root[0]} {found.row_id}#{found.index + 1}", f"{found.row_id}/roll_{found.id}"
            yield TreeLine("", name, text, page, root[0], is_here=root == (evaluation, rollout))
        yield from branches(grown.get(root, []), "", DEEPEST)

    def branches(
        found: Sequence[tuple[Origin, Path]], stem: str, depth: int, of: str = ""
    ) -> Iterator[TreeLine]:
        """The evaluations of these branches, and below each the branches of its rollouts."""
        ordered = sorted(found, key=lambda one: (one[0].step, one[1].stem))
        for number, (origin, file) in enumerate(ordered, 1):
            drawn, below = ("└─ ", "   ") if number == len(ordered) else ("├─ ", "│  ")
            stored = load_evaluation(file)
            name, page = f"{of}@{origin.step} {stored.eval_id}", f"evals/{stored.eval_id}"
            is_here = evaluation == stored.eval_id
            first, reward = stored.pass_power.get(1), stored.averages.reward
            held = first and first.intervals.these_tasks
            rate = f" {bracketed(held)}" if held else ""
            text = f"{stored.passed} of {stored.n_scored} passed{rate}, reward "
            text += f"{score(reward.value if reward else None)}, {strategy(stored)}"
            text += ", another tool result" if origin.tool_result is not None else ""
            yield TreeLine(f"{stem}{drawn}", name, text, page, stored.eval_id, is_here)
            if depth:
                numbers = {one.id: f"#{one.index + 1}" for one in stored.outcomes}
                for place in [one for one in grown if one[0] == stored.eval_id]:
                    of_rollout = numbers.get(place[1], "gone ")
                    yield from branches(grown[place], f"{stem}{below}", depth - 1, of_rollout)

    if evaluation not in origins:
        roots = [place for place in grown if place[0] == evaluation and rollout in (None, place[1])]
        return [line for root in roots for line in lines(root)]
    root = evaluation, ""
    for _ in range(DEEPEST):
        if (above := origins.get(root[0])) is not None:
            root = above.evaluation, above.rollout
    return list(lines(root))


def tree_lines(lines: Iterable[TreeLine], width: int | None) -> Iterator[str]:
    """The tree for a terminal, long lines folded."""
    for line in lines:
        below = line.stem.replace("├─", "│ ").replace("└─", "  ")
        yield from wrap(str(line), width or 1000, subsequent_indent=f"{below}  ", break_on_hyphens=False)
