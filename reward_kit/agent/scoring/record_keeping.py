"""From a finished rollout to what is kept of it: its record, why it failed, its outcome."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import one_line
from reward_kit.agent.base.types import MOST_COUNTED, UNJUDGED_STOPS
from reward_kit.agent.records.outcome import RolloutOutcome, is_success
from reward_kit.agent.records.rollout_record import RolloutRecord
from reward_kit.agent.scoring.failures import ExpectedCall, classify_failure, row_differences
from reward_kit.agent.scoring.outputs import missing_outputs, replies, turn_of_success
from reward_kit.agent.scoring.user_faults import find_user_faults, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from reward_kit.agent.database import Changes
    from reward_kit.agent.records.outcome import ToolFault
    from reward_kit.agent.rollout.orchestrator import FinishedRollout
    from reward_kit.agent.scoring.failures import Failure
    from reward_kit.agent.scoring.user_faults import UserFault

NOT_COMPARED = "NOT_COMPARED"
"""Name of a reward's module for what its reward does not compare: ``("orders.note", ...)``."""
NO_SIMULATION = frozenset({"none", "human"})
"""Users that no model simulates."""


@dataclass(frozen=True, slots=True)
class FinalData:
    """The data of a finished rollout beside the data that its row expects.

    ``changes`` and ``gold`` (None without gold actions) are since the base; ``expected`` are the gold
    actions in order, ``gold_fault`` the first that could not be done. The reward ignores ``ignored``.
    """

    changes: Changes
    gold: Changes | None
    expected: Sequence[ExpectedCall] = ()
    gold_fault: str | None = None
    ignored: Collection[str] = ()


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
    return RolloutRecord(
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
        failure=None,
        started=finished.started,
        seconds=finished.seconds,
        base=rollout.task.seed.key,
        database=database,
        gold_database=gold_database,
        offered_tools=rollout.offered_tools,
    )


def classify(record: RolloutRecord, data: FinalData) -> None:
    """Set the ``user_faults`` and the ``failure`` of a record from its messages, calls and final data."""
    faults = _user_faults(record, data)
    failure = _failure(record, data, faults or ())
    record.user_faults = None if faults is None else [fault.to_json() for fault in faults]
    record.failure = failure.to_json() if failure else None


def _user_faults(record: RolloutRecord, data: FinalData) -> list[UserFault] | None:
    """The faults of the simulated user; None where there was none."""
    if record.user in NO_SIMULATION:
        return None
    said = [line.text for line in record.lines if line.speaker == "agent"]
    missing: list[Any] = [*missing_outputs(record.outputs, said)]
    if data.gold is not None:
        made = set(data.changes.ignoring(data.ignored))
        missing += [change for change in data.gold.ignoring(data.ignored) if change not in made]
    elif record.reward is not None and not is_success(record.reward):
        missing.append(record.reward)  # only the reward knows what is missing
    return find_user_faults(
        lines=record.lines,
        instruction=record.fields.get("sim_user_prompt"),
        tool_calls=record.tool_calls,
        stop_reason=record.stop_reason,
        expected=missing,
        given=len(lines_of(record.fields.get("initial_messages") or ())),
    )


def _failure(record: RolloutRecord, data: FinalData, faults: Sequence[UserFault]) -> Failure | None:
    """The class of the failure; None for a success, and if the reward itself failed."""
    judged = record.reward is not None
    if not judged and record.stop_reason not in UNJUDGED_STOPS:
        return None
    if record.reward is not None and is_success(record.reward):
        return None
    differences = None
    if data.gold is not None and judged:
        differences = row_differences(data.changes.ignoring(data.ignored), data.gold.ignoring(data.ignored))
    return classify_failure(
        stop_reason=record.stop_reason,
        stop_detail=record.stop_detail,
        tool_calls=record.tool_calls,
        expected=data.expected,
        differences=differences,
        outputs=record.outputs if judged else (),
        said=replies(record.messages, record.opening),
        steps=record.steps,
        turns=record.turns,
        user_fault=next((fault for fault in faults if fault.decisive), None) if judged else None,
        gold_fault=data.gold_fault,
    )


def not_compared(reward: Callable[..., Any]) -> Collection[str]:
    """The tables and columns that a reward's module says it does not compare (``Database.equals``)."""
    named = getattr(inspect.unwrap(reward), "__globals__", {}).get(NOT_COMPARED, ())
    if isinstance(named, str):
        return (named,)
    if isinstance(named, list | tuple | set | frozenset):
        return tuple(name for name in named if isinstance(name, str))
    return ()


def tool_faults_of(raised: Sequence[tuple[str, str]]) -> dict[str, ToolFault] | None:
    """The tools that raised (pairs of name and exception), in order; None where none did."""
    faults: dict[str, ToolFault] = {}
    for name, text in raised:
        fault = faults.setdefault(name, {"calls": 0, "first": one_line(text)})
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
    if record.reward is not None and is_success(record.reward):
        changed = (call.turn for call in record.tool_calls if call.changes)
        success_turn = turn_of_success(record.messages, record.opening, changed, record.outputs)
    failure: Mapping[str, Any] = record.failure or {}
    answered = [call for call in record.model_calls if call.error is None]
    faults = record.user_faults
    return RolloutOutcome(
        id=record.id,
        row_id=record.row_id,
        index=record.index,
        attempt=record.attempt,
        final=final,
        seed=record.seed,
        reward=record.reward,
        stop_reason=record.stop_reason,
        stop_detail=record.stop_detail,
        error=record.error,
        failure=failure.get("kind"),
        failure_detail=failure.get("detail"),
        failure_step=failure.get("step"),
        user_faults=None if faults is None else [fault["kind"] for fault in faults],
        tool_faults=tool_faults,
        steps=record.steps,
        turns=record.turns,
        turn_of_success=success_turn,
        started=record.started,
        seconds=_sound(record.seconds),
        model_seconds=_sound(sum(call.seconds for call in answered)),
        waited_seconds=_sound(record.waited),
        timed_calls=sum(call.usage.calls for call in answered if call.seconds),
        metrics=record.metric_scores,
        file=f"evals/{record.eval_id}.db/{record.id}",
        database=database,
        usage=record.usage,
    )


def _sound(seconds: float) -> float:
    """``seconds``, or 0 for a number that no clock gives."""
    return seconds if 0.0 <= seconds <= MOST_COUNTED else 0.0


def plain_result(result: Any) -> dict[str, Any] | None:
    """The object that a reward returned, as JSON values."""
    if result is None:
        return None
    plain: dict[str, Any] = result.to_dict() if hasattr(result, "to_dict") else result.model_dump()
    return plain
