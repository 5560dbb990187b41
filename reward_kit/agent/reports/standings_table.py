"""Evaluations that are compared, a line for each: for a terminal, and as Markdown to share."""

from __future__ import annotations

from string import ascii_uppercase
from typing import TYPE_CHECKING

from reward_kit.agent.comparing.paired import TELLING
from reward_kit.agent.comparing.standings import Standing, shared_ks, standings
from reward_kit.agent.reports.leaderboard import strategy
from reward_kit.agent.reports.markdown_table import markdown_table_lines
from reward_kit.agent.reports.plain_table import table_lines
from reward_kit.agent.reports.verdict_lines import verdict_lines
from reward_kit.agent.reports.wording import estimate, mean_money, one_line, score
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.comparing import EvaluationComparison

SIDES = ascii_uppercase
LONGEST_NAME, LONGEST_STRATEGY = 40, 80
LEFT = ("", "evaluation", "Pass^1", "verdict", "agent (model)")
"""Headings of the columns of text, and of that whose numbers may have intervals behind them or not."""
INTERVALS = "[95 % interval by bootstrap over rows]"


def standing_lines(comparisons: Sequence[EvaluationComparison], width: int | None) -> Iterator[str]:
    """A line for the baseline and each of the others.

    Where the table is wider than ``width`` (None: any is fine), agent and model stand below their line.
    """
    lines = standings(comparisons)
    rows = _cells(lines)
    yield from table_lines(rows, right=_right(rows[0]), width=width)
    if any(line.passes.pass_power[1].interval for line in lines):
        yield INTERVALS
    if any(len(each.rows) < len(one.rows) for each in comparisons for one in (each.a, each.b)):
        yield "Numbers are over all rows of an evaluation, verdicts over those shared with A."


def markdown_lines(comparisons: Sequence[EvaluationComparison]) -> Iterator[str]:
    """The same table as Markdown, and the verdicts as a list; ``UsageError`` for more than have letters."""
    rows = _cells(standings(comparisons))
    agent = rows[0].index("agent (model)")
    code = [(*row[:agent], _code(row[agent])) for row in rows[1:]]
    yield from markdown_table_lines([rows[0], *code], right=_right(rows[0]))
    yield ""
    for side, each in zip(SIDES[1:], comparisons, strict=False):
        yield f"- {' '.join(verdict_lines(each.success, side))}"


def _cells(lines: Sequence[Standing]) -> list[tuple[str, ...]]:
    if len(lines) > len(SIDES):
        raise UsageError(f"at most {len(SIDES)} evaluations fit into one table")
    ks = shared_ks(lines)
    powers = [f"Pass^{k}" for k in ks]
    headings = ("", "evaluation", "rows", "judged", *powers, "reward", "cost", "verdict", "agent (model)")
    return [headings, *(_line(side, line, ks) for side, line in zip(SIDES, lines, strict=False))]


def _line(side: str, line: Standing, ks: Sequence[int]) -> tuple[str, ...]:
    stored = line.evaluation
    first, *others = (line.passes.pass_power[k] for k in ks)
    return (
        side,
        _named(line),
        str(len(stored.rows)),
        f"{line.judged}/{stored.planned}",
        estimate(first),
        *(score(other.value) for other in others),
        score(line.reward.value if line.reward else None),
        mean_money(line.spent, 1),  # which does not count the unpriced calls: the column stays narrow
        _verdict(line),
        one_line(strategy(stored), LONGEST_STRATEGY),
    )


def _named(line: Standing) -> str:
    name, status = one_line(line.evaluation.eval_id, LONGEST_NAME), line.evaluation.status
    return name if status == "complete" else f"{name} ({status})"


def _verdict(line: Standing) -> str:
    if line.success is None:
        return "baseline"
    verdict = line.success.verdict
    hint = verdict != "no difference" and line.success.differing < TELLING
    return f"{verdict} (a hint)" if hint else verdict


def _right(headings: Sequence[str]) -> list[int]:
    return [at for at, heading in enumerate(headings) if heading not in LEFT]


def _code(text: str) -> str:
    """As code: what Python calls things is full of what Markdown takes for its own."""
    return f"`{text.replace('`', chr(39))}`"
