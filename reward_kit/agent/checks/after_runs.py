"""Findings of finished evaluations: rows that nobody passes, and failures that agree with one another."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import count, cut
from reward_kit.agent.database.changes import Changes, net
from reward_kit.agent.rollout.outcome import is_success
from reward_kit.agent.store.evaluation_file import reading
from reward_kit.agent.store.schema import FINAL
from reward_kit.agent.store.stored_evaluation import find_stored
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.checks.findings import ValidationReport
    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.store.stored_evaluation import Named

ENOUGH = 4
"""Judged rollouts of a row from which never passing is a finding."""
AGREEING = 3
"""Failed rollouts with one end state from which they are a finding, if they are half of all failures too."""


def add_run_findings(
    report: ValidationReport,
    evaluations: Sequence[Named],
    rows: Mapping[str, TaskRow],
    output_dir: str | Path,
) -> None:
    """Add what the rollouts of all ``evaluations`` together say of each row."""
    ends: dict[str, list[tuple[str, ...] | None]] = {}  # None: passed
    golds: dict[str, tuple[str, ...]] = {}
    sql = f"SELECT row_id, reward, json FROM rollouts JOIN traces ON rollout = id WHERE {FINAL}"  # noqa: S608
    for name in evaluations:
        path = find_stored(name, output_dir)
        with reading(path) as connection:
            of_rows = dict(connection.execute("SELECT row_id, gold_changes FROM rows"))
            if not of_rows.keys() & rows.keys():
                raise UsageError(f"evaluation {path.stem} has no row of this dataset", place="--evaluation")
            golds |= {row: _lines(json.loads(gold)) for row, gold in of_rows.items() if gold and row in rows}
            for row_id, reward, trajectory in connection.execute(sql):
                if row_id in rows and reward is not None:
                    calls = json.loads(trajectory)["tool_calls"]
                    steps = [change for call in calls for change in call["changes"]]
                    ends.setdefault(row_id, []).append(None if is_success(reward) else _lines(steps))
    for row_id, judged in ends.items():
        place = f"{rows[row_id].place} {row_id}"
        failed = Counter(end for end in judged if end is not None)
        if failed.total() == len(judged) >= ENOUGH:
            text = f"0 of {count(len(judged), 'rollout')} passed in {count(len(evaluations), 'evaluation')}"
            report.add("never-passed", place, text, [row_id])
        for end, times in failed.most_common(1):
            is_usual = times >= AGREEING and 2 * times >= failed.total()
            if is_usual and row_id in golds and end != golds[row_id]:
                changes = cut("; ".join(end), 200) or "no change"
                number = count(failed.total(), "failed rollout")
                text = f"{times} of {number} end in one state that is not gold's: {changes}"
                report.add("agreed-failure", place, text, [row_id])


def _lines(steps: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """The net changes of tool calls, as lines."""
    return tuple(sorted(Changes(net(Changes.from_json(steps))).lines(whole=True)))
