"""The report at the end of an evaluation, for a terminal or a pipe of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.base.text import count, estimate, from_here, score
from reward_kit.agent.reports.facts import (
    INTERVALS,
    LEADERBOARD,
    facts_of,
    leaderboard_row,
    left_out_lines,
    means_line,
    row_cells,
    title_line,
    what_went_wrong,
)
from reward_kit.agent.reports.failed_rollouts import chosen_failures, failure_facts, tool_faults
from reward_kit.agent.reports.tables import facts_table, print_table, text_table
from reward_kit.agent.scoring.metrics import LEADERBOARD_KS, shown_ks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from reward_kit.agent.scoring.results import EvaluationResult
    from reward_kit.agent.scoring.rows import RowResult

SHOW_ALL_UP_TO = 20
"""With more rows than this, those that passed every rollout are folded into one line."""
SHOW_AT_MOST = 40
LONGEST_NAME = 24
"""Characters of a row's name that other columns leave space for; longer ones are folded."""
LEFT_OUT_FIRST = ("steps", "time", "cost")
"""Columns that are left out, in this order, if the terminal is too narrow."""
SOME_FAILURES, FEW_FAILURES = 3, 2
"""Failed rollouts that are shown; fewer if the table of rows is long already."""


def print_report(result: EvaluationResult, console: Console) -> None:
    """Rows, scores, facts, failures, leaderboard row, files."""
    long = len(result.rows) > SHOW_ALL_UP_TO
    console.print()
    console.print(title_line(result))
    console.print()
    print_table(_rows_table(result.rows, console.width), console)
    for line in _folded(result.rows) if long else ():
        console.print(line)
    console.print()
    print_table(_passes_table(result), console)
    for line in _score_lines(result):
        console.print(f"  {line}")
    console.print()
    print_table(facts_table(facts_of(result)), console)
    for line, first in tool_faults(result):
        seen = "" if first is None else f" in row {first.row_id}, {from_here(result.folder / first.file)}"
        console.print(f"{line}{seen}", soft_wrap=True)
    console.print()
    chosen = chosen_failures(result, FEW_FAILURES if long else SOME_FAILURES)
    for outcome in chosen:
        print_table(facts_table(failure_facts(result, outcome), len("explanations")), console)
        console.print(f"  file        {from_here(result.folder / outcome.file)}", soft_wrap=True)
    if chosen:
        console.print()
    leaderboard = text_table(LEADERBOARD[0], right=LEADERBOARD[1:], box=True)
    leaderboard.add_row(*leaderboard_row(result))
    print_table(leaderboard, console)
    console.print()
    if result.compared_with is not None:
        for line in result.compared_with.lines():
            console.print(line, soft_wrap=True)
        console.print()
    for line in _files(result):
        console.print(line, soft_wrap=True)


def _rows_table(rows: Sequence[RowResult], width: int) -> Table:
    """A line for each row, without the columns that would leave no space to say what went wrong."""
    shown = rows if len(rows) <= SHOW_ALL_UP_TO else _troubled(rows)[:SHOW_AT_MOST]
    cells = {row.row_id: row_cells(row) for row in shown}
    headings = ["passed", "reward", "steps", "time", "cost"]
    widths = {name: max([len(name), *(len(of[name]) for of in cells.values())]) + 2 for name in headings}
    names = min(LONGEST_NAME, max((len(row.row_id) for row in shown), default=0))
    kinds = max((len(kind) for row in shown for kind in row.failures), default=0)
    for name in LEFT_OUT_FIRST:
        if names + 2 + sum(widths[heading] for heading in headings) + kinds + 2 > width:
            headings.remove(name)
    means = means_line(shown, headings)
    table = text_table("row", right=headings, caption=None if means is None else f"[{means}]")
    table.columns[0].min_width = names
    table.add_column("what went wrong", overflow="fold", ratio=1)
    for row in shown:
        numbers = [cells[row.row_id][name] for name in headings]
        table.add_row(row.row_id, *numbers, what_went_wrong(row))
    return table


def _troubled(rows: Sequence[RowResult]) -> list[RowResult]:
    return [row for row in rows if row.passed < row.planned]


def _folded(rows: Sequence[RowResult]) -> Iterator[str]:
    troubled = _troubled(rows)
    if len(troubled) > SHOW_AT_MOST:
        yield f"  and {count(len(troubled) - SHOW_AT_MOST, 'more row')} with rollouts that did not pass"
    passed = len(rows) - len(troubled)
    if passed:
        yield f"  {count(passed, 'row')} passed every rollout"


def _passes_table(result: EvaluationResult) -> Table:
    has_intervals = any(one.interval for one in result.pass_power.values())
    table = text_table("k", right=("Pass^k", "Pass@k"), caption=INTERVALS if has_intervals else None)
    for k in shown_ks(max(result.pass_power, default=0)):
        table.add_row(str(k), estimate(result.pass_power[k]), estimate(result.pass_at[k]))
    table.add_row("score", score(result.score), "")
    return table


def _score_lines(result: EvaluationResult) -> Iterator[str]:
    last = max((k for k in result.pass_power if k in LEADERBOARD_KS), default=1)
    if last > 1:
        yield f"score: the mean of Pass^1 to Pass^{last}"
    yield from left_out_lines(result)


def _files(result: EvaluationResult) -> Iterator[str]:
    yield f"results   {from_here(result.results_path)}"
    path = from_here(result.log_path)
    yield f"rollouts  {path}, to read: reward-kit view {path}"
