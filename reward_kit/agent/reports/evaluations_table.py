"""The evaluations of a runs folder, a line for each."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from reward_kit.agent.metrics import mean
from reward_kit.agent.outcome import total_usage
from reward_kit.agent.reports.leaderboard import strategy
from reward_kit.agent.reports.plain_table import table_lines
from reward_kit.agent.reports.standings_table import LONGEST_STRATEGY
from reward_kit.agent.reports.wording import money, one_line, score
from reward_kit.agent.runs.resume import stored_logs
from reward_kit.agent.runs.stored_evaluation import load_evaluation
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reward_kit.agent.runs.stored_evaluation import StoredEvaluation

HEADINGS = ("evaluation", "begun", "rollouts", "Pass^1", "cost", "status", "agent (model)")
RIGHT = frozenset({2, 3, 4})
"""Columns of numbers."""


def evaluation_lines(evals: Path, width: int | None) -> Iterator[str]:
    """A table of the evaluations in ``evals``, those begun first at the top.

    Where the table is wider than ``width`` (None: any is fine), agent and model stand below their line. One
    that cannot be read has a line that tells why.
    """
    found, faults = read_evaluations(evals)
    if found:
        rows = [HEADINGS, *map(evaluation_cells, found)]
        yield from table_lines(rows, right=RIGHT, width=width)
    yield from faults


def read_evaluations(evals: Path) -> tuple[list[StoredEvaluation], list[str]]:
    """The evaluations in ``evals``, those begun first at the front; a line on each that cannot be read."""
    read = [_read(log) for log in stored_logs(evals)]
    found = [one for one in read if not isinstance(one, str)]
    return sorted(found, key=lambda stored: stored.created), [one for one in read if isinstance(one, str)]


def _read(log: Path) -> StoredEvaluation | str:
    """The evaluation, or a line on why there is none."""
    try:
        return load_evaluation(log)
    except StorageError as error:
        return f"{log.stem}: {one_line(error.fault)}"


def evaluation_cells(stored: StoredEvaluation) -> tuple[str, ...]:
    """The texts below ``HEADINGS``."""
    unjudged = sum(not outcome.judged for outcome in stored.outcomes)
    rates = [rate for row in stored.rows if (rate := row.pass_power(1)) is not None]
    return (
        stored.eval_id,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(stored.created)),
        f"{len(stored.outcomes)}/{stored.planned}",
        score(mean(rates)),
        money(total_usage([*stored.usage.values(), *stored.broken_off.usage.values()])),
        f"{stored.status}, {unjudged} not judged" if unjudged else stored.status,
        one_line(strategy(stored), LONGEST_STRATEGY),
    )
