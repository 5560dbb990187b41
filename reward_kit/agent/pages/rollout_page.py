"""One rollout as a page: how it ended and why, the conversation with what each call changed, the costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.calls import call_line
from reward_kit.agent.metrics import is_success
from reward_kit.agent.outcome import total_usage
from reward_kit.agent.pages.conversation import conversation
from reward_kit.agent.pages.rendering import readable, render
from reward_kit.agent.reports.failed_rollouts import row_line

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.explain import Explanation
    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.runs.rollout_record import RolloutRecord


class Neighbours(NamedTuple):
    """The rollouts of the same evaluation to go on with."""

    before: RolloutOutcome | None = None
    after: RolloutOutcome | None = None
    next_failed: RolloutOutcome | None = None
    of_row: Sequence[RolloutOutcome] = ()


ALONE = Neighbours()


def neighbours(
    outcomes: Sequence[RolloutOutcome], place: int, of_row: Sequence[RolloutOutcome]
) -> Neighbours:
    """Those of the rollout at ``place`` among all of its evaluation; ``of_row`` are those of its row."""
    later = (outcomes[number] for number in range(place + 1, len(outcomes)))
    return Neighbours(
        before=outcomes[place - 1] if place else None,
        after=outcomes[place + 1] if place + 1 < len(outcomes) else None,
        next_failed=next((one for one in later if not one.success), None),
        of_row=of_row,
    )


def rollout_page(
    record: RolloutRecord, around: Neighbours = ALONE, explanation: Explanation | None = None
) -> str:
    """The page; ``around`` are links to others."""
    failure = record.failure or {}
    parts = _parts(record.result)
    return render(
        "rollout.html",
        title=f"{record.row_id} #{record.index + 1}",
        root="../",
        record=record,
        around=around,
        passed=record.reward is not None and is_success(record.reward),
        reason=_reason(record.result, parts),
        parts=parts,
        failure=failure,
        expected=_call(failure.get("expected")),
        made=_call(failure.get("made")),
        differences=[row_line(row) for row in failure.get("rows") or ()],
        entries=list(conversation(record)),
        gold=[call_line(action.name, action.arguments) for action in record.gold],
        row=readable(record.fields),
        total=total_usage(record.usage.values()),
        explanation=explanation,
    )


def _parts(result: Mapping[str, Any] | None) -> dict[str, Mapping[str, Any]]:
    """The metrics of a reward, by name."""
    metrics = (result or {}).get("metrics")
    return {name: part for name, part in metrics.items() if isinstance(part, dict)} if metrics else {}


def _reason(result: Mapping[str, Any] | None, parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The reason of a reward, unless the reasons of its ``parts`` say all of it."""
    reason = str((result or {}).get("reason") or "")
    rest = reason
    for said in dict.fromkeys(str(part["reason"]) for part in parts.values() if part.get("reason")):
        rest = rest.replace(said, " ")
    return reason if any(character.isalnum() for character in rest) else ""


def _call(call: Mapping[str, Any] | None) -> str | None:
    return None if not call else call_line(call["name"], call["arguments"])
