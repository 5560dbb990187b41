"""The report at the end of an evaluation, for a terminal or a pipe of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.metrics import shown_ks
from reward_kit.agent.reports.facts import (
    facts_of,
    means_line,
    row_cells,
    score_lines,
    title_line,
    what_went_wrong,
)
from reward_kit.agent.reports.failed_rollouts import (
    chosen_failures,
    failure_facts,
    tool_fault_lines,
)
from reward_kit.agent.reports.leaderboard import HEADINGS, leaderboard_row
from reward_kit.agent.reports.wording import (
    count,
    estimate,
    from_here,
    score,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from reward_kit.agent.reports.failed_rollouts import Fact
    from reward_kit.agent.results import EvaluationResult, RowResult

SHOW_ALL_UP_TO = 20
"""With more rows than this, those that passed every rollout are folded into one line."""
SHOW_AT_MOST = 40
LONGEST_NAME = 24
"""Characters of a row's name for which other columns make room; longer ones are folded."""
LEFT_OUT_FIRST = ("steps", "time", "cost")
"""Columns that are left out, in this order, where there is no room."""
SOME_FAILURES, FEW_FAILURES = 3, 2
"""So many failed rollouts are shown one by one: fewer where the table of rows is long already."""


def print_report(result: EvaluationResult, console: Console) -> None:
    """Rows, aggregates, leaderboard row, failures, where the files are."""
    console.print()
    console.print(title_line(result))
    console.print()
    _print_table(_rows_table(result.rows, console.width), console)
    for line in _folded(result.rows):
        console.print(line)
    console.print()
    _print_table(_passes_table(result), console)
    for line in score_lines(result):
        console.print(f"  {line}")
    console.print()
    _print_table(_facts_table(facts_of(result)), console)
    for line in tool_fault_lines(result):
        console.print(line, soft_wrap=True)
    console.print()
    _print_failures(result, console)
    _print_table(_leaderboard_table(result), console)
    console.print()
    if result.compared_with is not None:
        for line in result.compared_with.lines():
            console.print(line, soft_wrap=True)
        console.print()
    for line in _files(result):
        console.print(line, soft_wrap=True)


def _print_table(table: Table, console: Console) -> None:
    """Print a table without the blanks that fill its lines up."""
    from rich.segment import Segment, Segments

    segments: list[Segment] = []
    for line in console.render_lines(table, pad=False):
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            last = line.pop()
            line.append(Segment(last.text.rstrip(), last.style))
        segments += [*line, Segment.line()]
    console.print(Segments(segments), end="")


def scores_line(result: EvaluationResult) -> str:
    """The leaderboard row in one line, as ``--quiet`` prints it."""
    name, *values = leaderboard_row(result)
    scores = "  ".join(f"{heading} {value}" for heading, value in zip(HEADINGS[1:], values, strict=True))
    return f"{name}  {scores}"


def _rows_table(rows: Sequence[RowResult], width: int) -> Table:
    """A line for each row, without the columns that would leave no room to say what went wrong."""
    shown = _shown(rows)
    cells = {row.row_id: row_cells(row) for row in shown}
    headings = ["passed", "reward", "steps", "time", "cost"]
    widths = {name: max([len(name), *(len(of[name]) for of in cells.values())]) + 2 for name in headings}
    names = min(LONGEST_NAME, max((len(row.row_id) for row in shown), default=0))
    kinds = max((len(kind) for row in shown for kind in row.failures), default=0)
    for name in LEFT_OUT_FIRST:
        if names + 2 + sum(widths[heading] for heading in headings) + kinds + 2 > width:
            headings.remove(name)
    table = _table("row", right=headings)
    table.columns[0].min_width = names
    table.add_column("what went wrong", overflow="fold", ratio=1)
    table.columns[0].overflow = "fold"
    for row in shown:
        values = [cells[row.row_id][name] for name in headings]
        table.add_row(row.row_id, *values, what_went_wrong(row))
    means = means_line(shown, headings)
    if means is not None:
        table.caption = f"[{means}]"
        table.caption_justify = "left"
    return table


def _troubled(rows: Sequence[RowResult]) -> list[RowResult]:
    return [row for row in rows if row.c < row.planned]


def _shown(rows: Sequence[RowResult]) -> Sequence[RowResult]:
    return rows if len(rows) <= SHOW_ALL_UP_TO else _troubled(rows)[:SHOW_AT_MOST]


def _folded(rows: Sequence[RowResult]) -> Iterator[str]:
    if len(rows) <= SHOW_ALL_UP_TO:
        return
    troubled = _troubled(rows)
    if len(troubled) > SHOW_AT_MOST:
        yield f"  and {count(len(troubled) - SHOW_AT_MOST, 'more row')} with rollouts that did not pass"
    passed = len(rows) - len(troubled)
    if passed:
        yield f"  {count(passed, 'row')} passed every rollout"


def _passes_table(result: EvaluationResult) -> Table:
    """Pass^k and Pass@k; in brackets their 95 % intervals."""
    table = _table("k", right=("Pass^k", "Pass@k"))
    for k in shown_ks(len(result.pass_power)):
        table.add_row(str(k), estimate(result.pass_power[k]), estimate(result.pass_at[k]))
    table.add_row("score", score(result.score), "")
    if any(one.interval for one in result.pass_power.values()):
        table.caption = "[95 % interval by bootstrap over rows]"
        table.caption_justify = "left"
    return table


def _facts_table(facts: Iterable[Fact], min_width: int | None = None) -> Table:
    """One fact a line; long ones go on below their beginning. ``min_width`` is that of their names."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=min_width)
    table.add_column(overflow="fold")
    for fact in facts:
        table.add_row(*fact)
    return table


def _print_failures(result: EvaluationResult, console: Console) -> None:
    """A few failed rollouts one by one, each with its file; which class, which step, what instead of what."""
    chosen = chosen_failures(result, FEW_FAILURES if len(result.rows) > SHOW_ALL_UP_TO else SOME_FAILURES)
    for outcome in chosen:
        _print_table(_facts_table(failure_facts(result, outcome), len("explanations")), console)
        console.print(f"  file        {from_here(result.folder / outcome.file)}", soft_wrap=True)
    if chosen:
        console.print()


def _leaderboard_table(result: EvaluationResult) -> Table:
    table = _table(HEADINGS[0], right=HEADINGS[1:], box=True)
    table.columns[0].overflow = "fold"
    table.add_row(*leaderboard_row(result))
    return table


def _files(result: EvaluationResult) -> Iterator[str]:
    yield f"results   {from_here(result.results_path)}"
    yield f"log       {from_here(result.log_path)}"
    reader = f"reward-kit view {from_here(result.log_path)}"
    yield f"rollouts  {from_here(result.folder)}/<row id>/roll_<id>.json, to read: {reader}"


def _table(first: str, *, right: Sequence[str], box: bool = False) -> Table:
    from rich import box as boxes
    from rich.table import Table

    table = Table(box=boxes.ASCII if box else None, padding=(0, 1), pad_edge=box, header_style="bold")
    table.add_column(first)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
