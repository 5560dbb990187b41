"""The page of an evaluation, with scores, rows and rollouts; and the list of all evaluations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.text import one_line
from reward_kit.agent.reports import facts
from reward_kit.agent.reports.listings import (
    dataset_name,
    evaluation_cells,
    group_notes,
    groups_table,
    trees_of,
)
from reward_kit.agent.reports.pages.selection import KINDS, RESULTS, SORTS, Selection, listed, until_written
from reward_kit.agent.scoring.groups import metadata_groups
from reward_kit.agent.scoring.metrics import shown_ks
from reward_kit.agent.scoring.numbers import dollars, estimate, money
from reward_kit.agent.store.evaluation_file import stored_files
from reward_kit.agent.store.layout import find_stored, read_evaluation
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.scoring.metrics import Estimate, RowResult
    from reward_kit.agent.store.results import EvaluationResult

REFRESH = 5
"""Seconds after which the page of a running evaluation is brought up to date."""
MOST_GROUP_LINES = 12
"""Tables by group with more lines in all are folded, so that the rows stay in sight."""
LOADED = 6
"""Evaluations whose scores are kept in memory."""
LEFT, RIGHT, TOP, BOTTOM = 34, 346, 10, 176
"""Edges of the plot in pixels, around which lie the labels of its axes."""


class Point(NamedTuple):
    """A point with its interval for tasks like these, in pixels; ``title`` is in words."""

    x: float
    y: float
    high: float
    low: float
    title: str
    name: str = ""


class Chart(NamedTuple):
    """Points over the axis of scores; ``ticks`` are labels of the other axis at places in pixels."""

    points: Sequence[Point]
    ticks: Sequence[tuple[float, str]]


class EvalLine(NamedTuple):
    """A line of the list; ``point`` is (dollars of a rollout, Pass^1) if both are known."""

    name: str
    created: float
    is_running: bool
    cells: dict[str, str]
    point: tuple[float, Estimate] | None


COLUMNS = ("dataset", "rows", "rollouts", "Pass^1", "cost", "started", "status", "agent (model)")
NUMBERS = ("rows", "rollouts", "Pass^1", "cost")
"""Columns of the list, and those that hold numbers."""


def evaluations_values(folder: Path, chosen: Sequence[Path] | None = None) -> dict[str, Any]:
    """The values of ``evaluations.html``, the last evaluation first; of all in the folder, or ``chosen``."""
    lines, damaged = [], []
    for file in stored_files(folder / "evals") if chosen is None else chosen:
        try:
            lines.append(_line(file))
        except StorageError as error:
            damaged.append(f"{file.stem}: {one_line(error.fault)}")
    lines.sort(key=lambda line: -line.created)
    priced = [(line.name, *line.point) for line in lines if line.point]
    return {
        "title": "Evaluations",
        "root": "",
        "folder": folder,
        "evaluations": lines,
        "right": NUMBERS,
        "chart": cost_chart(priced),
        "numbers": {name: number for number, (name, _, _) in enumerate(priced, 1)},
        "faults": damaged,
        "refresh": REFRESH if any(line.is_running for line in lines) else None,
    }


@until_written(500)
def _line(path: Path) -> EvalLine:
    stored = read_evaluation(path, brief=True)
    score, spent = stored.pass_power.get(1), stored.spent
    point = None
    if score and spent.calls and not spent.unpriced_calls:
        point = spent.cost / len(stored.outcomes), score
    cells = evaluation_cells(stored) | {"rows": str(len(stored.rows))}
    cells |= {"Pass^1": estimate(score)} if score else {}
    shown = {name: cells[name] for name in COLUMNS}
    return EvalLine(stored.eval_id, stored.created, stored.status == "running", shown, point)


def evaluation_values(path: Path, selection: Selection, *, static: bool = False) -> dict[str, Any]:
    """The values of ``evaluation.html``; a ``static`` page has all rows, and all rollouts that failed."""
    failed = Selection(by="rollouts", result="failed")
    return {
        **_scores(path),
        "selection": selection,
        "list": listed(path, selection, whole=static),
        "cells": facts.row_cells,
        "wrong": facts.what_went_wrong,
        "kind": kind_of,
        "sorts": SORTS[selection.by],
        "results": RESULTS,
        "kinds": KINDS,
        "failed": listed(path, failed, whole=True).rollouts if static else None,
        "branches": trees_of(path.parent, path.stem),
    }


@until_written(LOADED)
def _scores(path: Path) -> dict[str, Any]:
    """All that does not depend on the selection."""
    result = read_evaluation(find_stored(path, ""), brief=True)
    groups = _groups(result)
    ks = shown_ks(max(result.pass_power, default=0))
    tools = {tool["function"]["name"] for tools in result.toolsets.values() for tool in tools}
    return {
        "title": result.eval_id,
        "root": "../",
        "stored": replace(result, rows=()),  # they would stay in memory
        "headline": facts.title_line(result),
        "cost": money(result.spent),
        "dataset": dataset_name(result),
        "passes": [(k, result.pass_power[k], result.pass_at[k]) for k in ks],
        "chart": pass_curve(result.pass_power, ks),
        "facts": list(facts.facts_of(result)),
        "tool_faults": list(facts.tool_faults(result)),
        "groups": groups,
        "show_groups": sum(len(table) for table, _ in groups) <= MOST_GROUP_LINES,
        "notes": [*facts.interval_lines(result), *facts.left_out_lines(result)],
        "means": facts.means_line(result.rows),
        "counted": result.failures + result.unjudged,
        "tools": sorted(tools),
        "configuration": {name: value for name, value in result.configuration.items() if value is not None},
        "refresh": REFRESH if result.status == "running" else None,
    }


def _groups(result: EvaluationResult) -> list[tuple[list[tuple[str, ...]], list[str]]]:
    """A table of scores, with notes, by each metadata field that makes groups."""
    if result.status == "running":  # the page is made anew all the time
        return []
    try:
        found = metadata_groups(result.row_fields("metadata")).items()
    except StorageError:  # only the results were shared
        return []
    return [(groups_table(result, name, groups), list(group_notes(result, groups))) for name, groups in found]


def kind_of(row: RowResult) -> str:
    """One of ``KINDS``."""
    if row.n_scored == 0:
        return "open"
    return "never" if row.passed == 0 else "always" if row.passed == row.n_scored else "sometimes"


def pass_curve(powers: Mapping[int, Estimate], ks: Sequence[int]) -> Chart | None:
    """Pass^k by k with intervals; None for fewer than two ``ks``."""
    if len(ks) < 2:
        return None
    places = {k: _x((k - 1) / (ks[-1] - 1)) for k in ks}
    points = [_point(places[k], powers[k], f"Pass^{k} {estimate(powers[k])}") for k in ks]
    return Chart(points, [(place, str(k)) for k, place in places.items()])


def cost_chart(evaluations: Sequence[tuple[str, float, Estimate]]) -> Chart | None:
    """Pass^1 over the mean cost of a rollout in dollars, by evaluation; None unless two have a cost."""
    most = max((cost for _, cost, _ in evaluations), default=0)
    if len(evaluations) < 2 or most <= 0:
        return None
    points = [
        _point(_x(cost / most), score, f"{name}: {dollars(cost)}, Pass^1 {estimate(score)}", name)
        for name, cost, score in evaluations
    ]
    ticks = [(_x(share), dollars(share * most) if share else "$0") for share in (0, 0.5, 1)]
    return Chart(points, ticks)


def _point(x: float, score: Estimate, title: str, name: str = "") -> Point:
    low, high = score.intervals.tasks_like_these or score.intervals.these_tasks or (score.value, score.value)
    return Point(x, _y(score.value), _y(high), _y(low), title, name)


def _x(share: float) -> float:
    return round(LEFT + 6 + share * (RIGHT - LEFT - 12), 1)


def _y(value: float) -> float:
    return round(BOTTOM - value * (BOTTOM - TOP), 1)
