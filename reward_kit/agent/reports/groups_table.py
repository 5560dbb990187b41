"""The scores of an evaluation by group, a line for each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from reward_kit.agent.metrics import shown_ks
from reward_kit.agent.reports.facts import title_line
from reward_kit.agent.reports.plain_table import table_lines
from reward_kit.agent.reports.standings_table import INTERVALS
from reward_kit.agent.reports.wording import count, estimate, one_line, score

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from reward_kit.agent.groups import Group
    from reward_kit.agent.metrics import Estimate, PassTable
    from reward_kit.agent.results import EvaluationResult, RowResult

LONGEST_VALUE = 40
WITHOUT = "(none)"


def group_lines(result: EvaluationResult, field: str) -> Iterator[str]:
    """How many passed, then a table: the groups of rows by ``field``, and all rows."""
    groups = result.by(field)
    heading, *lines = groups_table(result, field, groups)
    yield title_line(result)
    yield ""
    right = [at for at in range(1, len(heading)) if heading[at] != "Pass^1"]
    yield from table_lines([heading, *lines], right=right)
    if any(one.interval for one in result.pass_power.values()):
        yield INTERVALS
    yield from group_notes(result, groups)


def groups_table(result: EvaluationResult, field: str, groups: Sequence[Group]) -> list[tuple[str, ...]]:
    """Headings, the ``groups`` of rows by ``field``, and all rows of the evaluation."""
    ks = shown_ks(max((len(group.pass_power) for group in groups), default=0))
    return [
        (one_line(field, LONGEST_VALUE), "rows", "judged", *(f"Pass^{k}" for k in ks), "reward"),
        *(_cells(_label(group), group.rows, group.passes, group.reward, ks) for group in groups),
        _cells("all", result.rows, result.passes, result.averages.reward, ks),
    ]


def group_notes(result: EvaluationResult, groups: Sequence[Group]) -> Iterator[str]:
    """Where rows are in several of the ``groups``, or in none."""
    begun = sum(bool(row.outcomes) for row in result.rows)
    if sum(len(group.rows) for group in groups) > begun:
        yield "Rows with several values count in each of their groups."
    if begun < len(result.rows):
        yield f"In no group: {count(len(result.rows) - begun, 'row')} of which no rollout is over."


def _cells(
    label: str, rows: Sequence[RowResult], passes: PassTable, reward: Estimate | None, ks: Sequence[int]
) -> tuple[str, ...]:
    powers = [passes.pass_power.get(k) for k in ks]
    return (
        label,
        str(len(rows)),
        f"{sum(row.n for row in rows)}/{sum(row.planned for row in rows)}",
        *(estimate(power) for power in powers[:1]),
        *(score(power.value if power else None) for power in powers[1:]),
        score(reward.value if reward else None),
    )


def _label(group: Group) -> str:
    value: Any = group.value
    if value is None:
        return WITHOUT
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), LONGEST_VALUE)
