"""From a finished rollout to what is kept of it: its record, and its outcome."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import plain
from reward_kit.agent.base.places import shown_line
from reward_kit.agent.rewards.checks import missing_outputs, said_to_user
from reward_kit.agent.rollout.outcome import Attempt, RolloutOutcome
from reward_kit.agent.rollout.rollout_record import RolloutRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.orchestrator import FinishedRollout
    from reward_kit.agent.rollout.outcome import ToolFault

_ATTEMPT = [item.name for item in fields(Attempt)]


def record_of(
    finished: FinishedRollout,
    *,
    attempt: int,
    eval_id: str,
    agent: str,
    user: str,
    models: Mapping[str, str],
    database: str | None,
    gold_database: str | None,
) -> RolloutRecord:
    """The trajectory of a rollout, not classified yet.

    ``agent``, ``user`` and ``models`` (by role) are the names of those that took part.
    """
    rollout = finished.rollout
    record = RolloutRecord(
        id=rollout.id,
        row_id=rollout.row.id,
        index=rollout.index,
        attempt=attempt,
        seed=rollout.seed,
        eval_id=eval_id,
        agent=agent,
        user=user,
        models=dict(models),
        fields=rollout.row.reward_fields(),
        messages=rollout.messages,
        tool_calls=rollout.tool_calls,
        model_calls=rollout.model_calls,
        usage={role: usage for role, usage in rollout.usage.items() if usage.calls},
        steps=rollout.steps,
        turns=rollout.turns,
        stop_reason=str(rollout.stop_reason),
        stop_detail=rollout.stop_detail,
        reward=finished.reward,
        result=plain_result(finished.result),
        error=finished.error,
        started=finished.started,
        seconds=finished.seconds,
        base=rollout.task.seed.key,
        database=database,
        gold_database=gold_database,
        sent_back=rollout.sent_back,
        offered_tools=rollout.offered_tools,
        violations=rollout.violations,
    )
    record.lines = list(rollout.lines)
    return record


def tool_faults_of(raised: Sequence[tuple[str, str]]) -> dict[str, ToolFault] | None:
    """The tools that raised (pairs of name and exception), in order; None if none did."""
    faults: dict[str, ToolFault] = {}
    for name, text in raised:
        fault = faults.setdefault(name, {"calls": 0, "first": shown_line(text)})
        fault["calls"] += 1
    return faults or None


def outcome_of(
    record: RolloutRecord,
    *,
    final: bool,
    database: str | None = None,
    tool_faults: dict[str, ToolFault] | None = None,
) -> RolloutOutcome:
    """The outcome of a record; ``database`` is its complete final database, relative to the runs folder."""
    success_turn = None
    if record.success:
        changed = (call.turn for call in record.tool_calls if call.changes)
        success_turn = turn_of_success(record.messages, record.opening, changed, record.outputs)
    failure: Mapping[str, Any] = record.failure or {}
    answered = [call for call in record.model_calls if call.error is None]
    faults = record.user_faults
    return RolloutOutcome(
        **{name: getattr(record, name) for name in _ATTEMPT},
        final=final,
        failure=failure.get("kind"),
        failure_detail=failure.get("detail"),
        failure_step=failure.get("step"),
        turn_of_success=success_turn,
        model_seconds=sum(call.seconds for call in answered),
        waited_seconds=record.waited,
        timed_calls=sum(call.usage.calls for call in answered if call.seconds),
        usage=record.usage,
        user_faults=None if faults is None else [fault["kind"] for fault in faults],
        tool_faults=tool_faults,
        metrics=record.metric_scores,
        violations=record.violations,
        file=f"evals/{record.eval_id}.db/{record.id}",
        database=database,
    )


def turn_of_success(
    messages: Sequence[Message], opening: int, changed_in_turns: Iterable[int], outputs: Sequence[str]
) -> int:
    """The turn (from 1) in which a successful rollout had done everything that counts.

    The last turn in which a tool call changed rows, or the first by which all ``outputs`` had been said,
    whichever is later; 1 if nothing had to be done or said. ``opening`` is the number of messages that the
    rollout began with.
    """
    turn = max(changed_in_turns, default=1)
    if not outputs:
        return turn
    said = said_to_user(messages[opening:])
    needed = next(
        (count for count in range(1, len(said)) if not missing_outputs(outputs, said[:count])), len(said)
    )
    return max(turn, needed)


def plain_result(result: Any) -> dict[str, Any] | None:
    """The object that a reward returned, as JSON values."""
    if result is None:
        return None
    given = result.to_dict() if hasattr(result, "to_dict") else result.model_dump()
    returned: dict[str, Any] = plain(given, strict=False)
    return returned
