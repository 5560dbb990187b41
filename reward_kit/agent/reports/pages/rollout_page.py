"""The page of a rollout: the verdict, the timeline, the costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.text import call_line
from reward_kit.agent.reports.pages.timeline import timeline
from reward_kit.agent.reports.pages.verdict import ignored_columns, verdict_on
from reward_kit.agent.rollout.outcome import is_success
from reward_kit.agent.store.transcript import end_facts, player_facts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.after.explainer import Explanation
    from reward_kit.agent.reports.branches import TreeLine
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.rollout.trace import Trace


class Neighbours(NamedTuple):
    """The rollouts of the same evaluation that a page links to; ``query`` is the end of their addresses.

    ``place`` is the number of this one among ``total`` that were selected; 0 if it is none of them.
    """

    before: Outcome | None = None
    after: Outcome | None = None
    next_failed: Outcome | None = None
    of_row: Sequence[Outcome] = ()
    query: str = ""
    place: int = 0
    total: int = 0


def rollout_values(
    record: Trace,
    around: Neighbours,
    explanation: Explanation | None = None,
    branches: Sequence[TreeLine] = (),
) -> dict[str, Any]:
    """The values of the template ``rollout.html``; ``around`` are its links to other rollouts."""
    metrics = (record.result or {}).get("metrics") or {}
    steps = timeline(record)
    return {
        "title": f"{record.row_id} #{record.index + 1}",
        "root": "../",
        "record": record,
        "around": around,
        "passed": record.reward is not None and is_success(record.reward),
        "reason": (record.result or {}).get("reason") or "",
        "parts": {name: part for name, part in metrics.items() if isinstance(part, dict)},
        "failure": record.failure or {},
        "not_compared": ignored_columns(record.failure or {}),
        "facts": [*player_facts(record), *end_facts(record)],
        "steps": steps,
        "has_rows": any(step.rows or step.expected for step in steps),
        "verdict": verdict_on(record, steps),
        "gold": [call_line(action.name, action.arguments) for action in record.gold],
        "explanation": explanation,
        "branches": branches,
    }
