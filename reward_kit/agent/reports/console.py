"""The report at the end of an evaluation, for a terminal or a pipe of 80 columns."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import count, from_here, one_line
from reward_kit.agent.reports.facts import (
    LEADERBOARD,
    MEANS,
    Fact,
    facts_of,
    interval_lines,
    leaderboard_row,
    left_out_lines,
    means_line,
    row_cells,
    title_line,
    tool_faults,
    what_went_wrong,
)
from reward_kit.agent.reports.tables import fact_lines, markdown_table_lines, table_lines
from reward_kit.agent.scoring.metrics import LEADERBOARD_KS, shown_ks
from reward_kit.agent.scoring.numbers import estimate, score
from reward_kit.agent.store.transcript import failure_facts
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.scoring.rows import RowResult
    from reward_kit.agent.store.results import EvaluationResult

SHOW_ALL_UP_TO = 20
"""With more rows than this, those that passed every rollout are folded into one line."""
SHOW_AT_MOST = 40
SOME_FAILURES, FEW_FAILURES = 3, 2
"""Failed rollouts that are shown; fewer if the table of rows is long already."""
LONGEST_LINE = 220
"""Characters of a call or a difference that are shown."""


def report_lines(result: EvaluationResult, width: int) -> Iterator[str]:
    """Rows, scores, facts, failures, leaderboard row, files."""
    long = len(result.rows) > SHOW_ALL_UP_TO
    yield from ("", *wrap(title_line(result), width), "")
    yield from _row_lines(result.rows, width)
    yield from _folded(result.rows) if long else ()
    yield ""
    yield from _score_lines(result, width)
    yield ""
    yield from fact_lines(facts_of(result), width)
    for line, first in tool_faults(result):
        yield line + (
            "" if first is None else f" in row {first.row_id}, {from_here(result.folder / first.file)}"
        )
    yield ""
    chosen = _chosen_failures(result, FEW_FAILURES if long else SOME_FAILURES)
    for outcome in chosen:
        yield from fact_lines(failed_rollout_facts(result, outcome), width)
        yield f"  file        {from_here(result.folder / outcome.file)}"
    if chosen:
        yield ""
    yield from markdown_table_lines([LEADERBOARD, leaderboard_row(result)], right=range(1, len(LEADERBOARD)))
    yield ""
    for found in (result.compared_with, result.agreement):
        if found is not None:
            yield from (*found.lines(), "")
    path = from_here(result.log_path)
    yield f"results   {from_here(result.results_path)}"
    yield f"rollouts  {path}, to read: reward-kit view {path}"


def _row_lines(rows: Sequence[RowResult], width: int) -> Iterator[str]:
    shown = rows if len(rows) <= SHOW_ALL_UP_TO else _troubled(rows)[:SHOW_AT_MOST]
    headings = ("row", "passed", *MEANS, "what went wrong")
    cells = [(row.row_id, *row_cells(row).values(), what_went_wrong(row)) for row in shown]
    yield from table_lines([headings, *cells], right=range(1, len(headings) - 1), width=width)
    means = means_line(shown)
    if means is not None:
        yield f"[{means}]"


def _troubled(rows: Sequence[RowResult]) -> list[RowResult]:
    return [row for row in rows if row.passed < row.planned]


def _folded(rows: Sequence[RowResult]) -> Iterator[str]:
    troubled = len(_troubled(rows))
    if troubled > SHOW_AT_MOST:
        yield f"  and {count(troubled - SHOW_AT_MOST, 'more row')} with rollouts that did not pass"
    if troubled < len(rows):
        yield f"  {count(len(rows) - troubled, 'row')} passed every rollout"


def _score_lines(result: EvaluationResult, width: int) -> Iterator[str]:
    powers = result.pass_power
    ks = shown_ks(max(powers, default=0))
    lines = [(str(k), estimate(powers[k]), estimate(result.pass_at[k])) for k in ks]
    yield from table_lines([("k", "Pass^k", "Pass@k"), *lines, ("score", score(result.score), "")])
    for line in interval_lines(result):
        yield from wrap(line, width)
    last = max((k for k in powers if k in LEADERBOARD_KS), default=1)
    if last > 1:
        yield f"score: the mean of Pass^1 to Pass^{last}"
    yield from left_out_lines(result)


def _chosen_failures(result: EvaluationResult, most: int) -> list[Outcome]:
    """At most ``most``: the first of each class, the most frequent class first; then the second of each."""
    frequency = result.failures
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int, Outcome]] = []
    for outcome in result.outcomes:
        if outcome.failure is not None and outcome.scored:
            ranked.append((seen[outcome.failure], -frequency[outcome.failure], outcome))
            seen[outcome.failure] += 1
    return [outcome for *_, outcome in sorted(ranked, key=lambda entry: entry[:2])[:most]]


def failed_rollout_facts(result: EvaluationResult, outcome: Outcome, most: int = 1) -> Iterator[Fact]:
    """A failed rollout: class and step, expected and made call, at most ``most`` differences, a judgement."""
    where = "" if outcome.failure_step is None else f" in step {outcome.failure_step}"
    trouble = one_line(outcome.trouble, LONGEST_LINE)
    yield "failed", f"{outcome.row_id} #{outcome.index + 1}: {outcome.failure}{where}: {trouble}"
    failure: dict[str, Any] = {}
    with suppress(StorageError):  # shared without its trajectories: the outcome says enough
        failure = result.record(outcome).failure or {}
    facts = list(failure_facts(failure))
    data = [text for name, text in facts if name == "data"]
    yield from ((f"  {name}", one_line(text, LONGEST_LINE)) for name, text in facts if name != "data")
    for number, text in enumerate(data[:most], start=1):
        more = f" (and {len(data) - most} more)" if number == most < len(data) else ""
        yield "  data", one_line(text, LONGEST_LINE) + more
    for one in result.explanations.usable if result.explanations is not None else ():
        if one.rollout == outcome.id:
            yield "  judged", f"{one.author}, {one.fault}: {one_line(one.sentence or '')}"
