"""The report at the end of an evaluation, for a terminal or a pipe of 80 columns."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import call_line, count, estimate, from_here, one_line, score
from reward_kit.agent.reports.facts import (
    INTERVALS,
    LEADERBOARD,
    Fact,
    facts_of,
    leaderboard_row,
    left_out_lines,
    means_line,
    row_cells,
    title_line,
    tool_faults,
    what_went_wrong,
)
from reward_kit.agent.reports.tables import facts_table, print_table, text_table
from reward_kit.agent.scoring.failures.row_differences import row_line
from reward_kit.agent.scoring.metrics import LEADERBOARD_KS, shown_ks
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console
    from rich.table import Table

    from reward_kit.agent.records.outcome import RolloutOutcome
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
LONGEST_LINE = 220
"""Characters of a call or a difference that are shown."""


def print_report(result: EvaluationResult, console: Console) -> None:
    """Rows, scores, facts, failures, leaderboard row, files."""
    long = len(result.rows) > SHOW_ALL_UP_TO
    console.print(f"\n{title_line(result)}\n")
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
    chosen = _chosen_failures(result, FEW_FAILURES if long else SOME_FAILURES)
    for outcome in chosen:
        print_table(facts_table(_failure_facts(result, outcome), len("explanations")), console)
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
    path = from_here(result.log_path)
    console.print(f"results   {from_here(result.results_path)}", soft_wrap=True)
    console.print(f"rollouts  {path}, to read: reward-kit view {path}", soft_wrap=True)


def _rows_table(rows: Sequence[RowResult], width: int) -> Table:
    """A line for each row, without the columns that would leave no space to say what went wrong."""
    shown = rows if len(rows) <= SHOW_ALL_UP_TO else _troubled(rows)[:SHOW_AT_MOST]
    cells = [row_cells(row) for row in shown]
    headings = ["passed", "reward", "steps", "time", "cost"]
    names = min(LONGEST_NAME, max((len(row.row_id) for row in shown), default=0))
    kinds = max((len(kind) for row in shown for kind in row.failures), default=0)
    for name in LEFT_OUT_FIRST:
        widths = [max(len(heading), *(len(of[heading]) for of in cells), 0) + 2 for heading in headings]
        if names + 2 + sum(widths) + kinds + 2 > width:
            headings.remove(name)
    means = means_line(shown, headings)
    table = text_table("row", right=headings, caption=None if means is None else f"[{means}]")
    table.columns[0].min_width = names
    table.add_column("what went wrong", overflow="fold", ratio=1)
    for row, numbers in zip(shown, cells, strict=True):
        table.add_row(row.row_id, *(numbers[name] for name in headings), what_went_wrong(row))
    return table


def _troubled(rows: Sequence[RowResult]) -> list[RowResult]:
    return [row for row in rows if row.passed < row.planned]


def _folded(rows: Sequence[RowResult]) -> Iterator[str]:
    troubled = len(_troubled(rows))
    if troubled > SHOW_AT_MOST:
        yield f"  and {count(troubled - SHOW_AT_MOST, 'more row')} with rollouts that did not pass"
    if troubled < len(rows):
        yield f"  {count(len(rows) - troubled, 'row')} passed every rollout"


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


def _chosen_failures(result: EvaluationResult, most: int) -> list[RolloutOutcome]:
    """At most ``most``: the first of each class, the most frequent class first; then the second of each."""
    frequency = result.failures
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int, RolloutOutcome]] = []
    for outcome in result.outcomes:
        if outcome.failure is not None and outcome.judged:
            ranked.append((seen[outcome.failure], -frequency[outcome.failure], outcome))
            seen[outcome.failure] += 1
    return [outcome for *_, outcome in sorted(ranked, key=lambda entry: entry[:2])[:most]]


def _failure_facts(result: EvaluationResult, outcome: RolloutOutcome) -> Iterator[Fact]:
    """One failed rollout: class and step, the expected and the made call, a differing row, a judgement."""
    where = "" if outcome.failure_step is None else f" in step {outcome.failure_step}"
    trouble = one_line(outcome.trouble, LONGEST_LINE)
    yield "failed", f"{outcome.row_id} #{outcome.index + 1}: {outcome.failure}{where}: {trouble}"
    failure: dict[str, Any] = {}
    with suppress(StorageError):  # shared without its trajectories: the outcome says enough
        failure = result.record(outcome).failure or {}
    for name in ("expected", "made"):
        call = failure.get(name)
        if call:
            yield f"  {name}", one_line(call_line(call["name"], call["arguments"]), LONGEST_LINE)
    rows = failure.get("rows")
    if rows:
        more = len(rows) - 1 + int(failure.get("more_rows") or 0)
        yield "  data", one_line(row_line(rows[0]), LONGEST_LINE) + (f" (and {more} more)" if more else "")
    for one in result.explanations.usable if result.explanations is not None else ():
        if one.rollout == outcome.id:
            yield "  judged", f"{one.author}, {one.fault}: {one_line(one.sentence or '')}"
