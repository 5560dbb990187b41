"""The page of a rollout: its end and the reason, the conversation with changed rows, the costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.text import call_line
from reward_kit.agent.records.outcome import is_success
from reward_kit.agent.reports.rollout_facts import conversation, end_facts, failure_facts, player_facts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.explain.explanation import Explanation
    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.records.rollout_record import RolloutRecord


class Neighbours(NamedTuple):
    """The rollouts of the same evaluation that a page links to."""

    before: RolloutOutcome | None = None
    after: RolloutOutcome | None = None
    next_failed: RolloutOutcome | None = None
    of_row: Sequence[RolloutOutcome] = ()


def rollout_values(
    record: RolloutRecord, around: Neighbours, explanation: Explanation | None = None
) -> dict[str, Any]:
    """The values of the template ``rollout.html``; ``around`` are its links to other rollouts."""
    failure = record.failure or {}
    metrics = (record.result or {}).get("metrics") or {}
    parts = {name: part for name, part in metrics.items() if isinstance(part, dict)}
    return {
        "title": f"{record.row_id} #{record.index + 1}",
        "root": "../",
        "record": record,
        "around": around,
        "passed": record.reward is not None and is_success(record.reward),
        "reason": _reason(record.result, parts),
        "parts": parts,
        "failure": failure,
        "failure_facts": list(failure_facts(failure)),
        "facts": [*player_facts(record), *end_facts(record)],
        "entries": list(conversation(record)),
        "gold": [call_line(action.name, action.arguments) for action in record.gold],
        "explanation": explanation,
    }


def _reason(result: Mapping[str, Any] | None, parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The reason of a reward, unless it repeats the reasons of its ``parts``."""
    reason = rest = str((result or {}).get("reason") or "")
    for part in parts.values():
        rest = rest.replace(str(part.get("reason") or " "), " ")
    return reason if any(character.isalnum() for character in rest) else ""
