"""What is written down of a rollout that is over: why it failed, its record, its line in the log."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from reward_kit.agent.completion import MOST_COUNTED
from reward_kit.agent.failures import Failure, classify_failure, missing_outputs, row_differences
from reward_kit.agent.metrics import is_success
from reward_kit.agent.outcome import UNJUDGED_STOPS, RolloutOutcome, replies, turn_of_success
from reward_kit.agent.redaction import without_password
from reward_kit.agent.reports.wording import one_line
from reward_kit.agent.runs.rollout_record import RolloutRecord
from reward_kit.agent.user_faults import UserFault, find_user_faults, lines_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from reward_kit.agent.orchestrator import FinishedRollout
    from reward_kit.agent.outcome import ToolFault
    from reward_kit.agent.participants import Participants
    from reward_kit.agent.rollout import Rollout
    from reward_kit.agent.runs.gold_state import GoldState

NOT_COMPARED = "NOT_COMPARED"
"""A reward's module may name under this what its reward does not compare: ``("orders.note", ...)``."""
NO_SIMULATION = frozenset({"none", "human"})
"""Users whose lines are nobody's simulation."""


def find_faults(finished: FinishedRollout, user_spec: str) -> list[UserFault] | None:
    """What the simulated user did wrong; None where there was none."""
    rollout = finished.rollout
    if user_spec in NO_SIMULATION:
        return None
    ignored = not_compared(rollout.task.reward)
    said = [line.text for line in rollout.lines if line.speaker == "agent"]
    missing: list[Any] = [*missing_outputs(rollout.outputs, said)]
    if finished.gold is not None:
        made = set(finished.database.changes().ignoring(ignored))
        missing += [change for change in finished.gold.ignoring(ignored) if change not in made]
    elif finished.reward is not None and not is_success(finished.reward):
        missing.append(finished.reward)  # what is missing, the reward alone knows
    return find_user_faults(
        lines=rollout.lines,
        instruction=rollout.row.text("sim_user_prompt"),
        tool_calls=rollout.tool_calls,
        stop_reason=rollout.stop_reason,
        expected=missing,
        given=len(lines_of(rollout.row.initial_messages)),
    )


def find_failure(
    finished: FinishedRollout, gold: GoldState | None, faults: Sequence[UserFault]
) -> Failure | None:
    """The class of what went wrong; None for a success, and where the reward itself failed."""
    rollout = finished.rollout
    if finished.reward is None and rollout.stop_reason not in UNJUDGED_STOPS:
        return None
    if finished.reward is not None and is_success(finished.reward):
        return None
    differences = None
    if finished.gold is not None and finished.reward is not None:
        ignored = not_compared(rollout.task.reward)
        differences = row_differences(
            finished.database.changes().ignoring(ignored), finished.gold.ignoring(ignored)
        )
    judged = finished.reward is not None
    return classify_failure(
        stop_reason=_stop_reason(finished),
        stop_detail=rollout.stop_detail,
        tool_calls=rollout.tool_calls,
        expected=gold.expected if gold else (),
        differences=differences,
        outputs=rollout.outputs if judged else (),
        said=replies(rollout.messages, opening_length(rollout.row.reward_fields())),
        steps=rollout.steps,
        turns=rollout.turns,
        user_fault=next((fault for fault in faults if fault.decisive), None) if judged else None,
        gold_fault=gold.fault if gold else None,
    )


def not_compared(reward: Callable[..., Any]) -> Collection[str]:
    """What a reward's module says that it does not compare, as ``Database.equals(ignore=...)`` takes it."""
    named = getattr(inspect.unwrap(reward), "__globals__", {}).get(NOT_COMPARED, ())
    if isinstance(named, str):
        return (named,)
    if isinstance(named, list | tuple | set | frozenset):
        return tuple(name for name in named if isinstance(name, str))
    return ()


def record_of(
    finished: FinishedRollout,
    *,
    attempt: int,
    eval_id: str,
    participants: Participants,
    failure: Failure | None,
    faults: Sequence[UserFault] | None,
    database: str | None,
    gold_database: str | None,
) -> RolloutRecord:
    """The trajectory as it is stored; ``database`` and ``gold_database`` are the names of files beside it."""
    rollout = finished.rollout
    return RolloutRecord(
        id=rollout.id,
        row_id=rollout.row.id,
        index=rollout.index,
        attempt=attempt,
        seed=rollout.seed,
        eval_id=eval_id,
        agent=without_password(participants.agent_spec),
        user=participants.user_specs[rollout.row.id],
        models=participants.models_of(rollout),
        fields=rollout.row.reward_fields(),
        messages=rollout.messages,
        tool_calls=rollout.tool_calls,
        model_calls=rollout.model_calls,
        usage={role: usage for role, usage in rollout.usage.items() if usage.calls},
        steps=rollout.steps,
        turns=rollout.turns,
        stop_reason=_stop_reason(finished),
        stop_detail=rollout.stop_detail,
        reward=finished.reward,
        result=_plain_result(finished.result),
        error=finished.error,
        failure=failure.to_json() if failure else None,
        started=finished.started,
        seconds=finished.seconds,
        base=rollout.task.seed.key,
        database=database,
        gold_database=gold_database,
        user_faults=None if faults is None else [fault.to_json() for fault in faults],
        offered_tools=rollout.offered_tools,
    )


def tool_faults_of(rollout: Rollout) -> dict[str, ToolFault] | None:
    """The tools that raised, in the order in which they did; None where none did."""
    faults: dict[str, ToolFault] = {}
    for name, raised in rollout.tool_faults:
        fault = faults.setdefault(name, {"calls": 0, "first": one_line(raised)})
        fault["calls"] += 1
    return faults or None


def outcome_of(
    record: RolloutRecord, *, file: str, final: bool, tool_faults: dict[str, ToolFault] | None = None
) -> RolloutOutcome:
    """The line of the log; ``file`` is the trajectory, relative to the runs folder."""
    success_turn = None
    if record.reward is not None and is_success(record.reward):
        changed = (call.turn for call in record.tool_calls if call.changes)
        opening = opening_length(record.fields)
        success_turn = turn_of_success(record.messages, opening, changed, record.outputs)
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
        file=file,
        usage=record.usage,
    )


def _sound(seconds: float) -> float:
    """0 for what no clock gives but one that an agent has broken: a log with it could not be read again."""
    return seconds if 0.0 <= seconds <= MOST_COUNTED else 0.0


def opening_length(fields: Mapping[str, Any]) -> int:
    """How many messages of a rollout were there at its start, from the fields of its row."""
    return len(fields.get("initial_messages") or ()) + ("system_prompt" in fields)


def _stop_reason(finished: FinishedRollout) -> str:
    reason = finished.rollout.stop_reason
    assert reason is not None, "a finished rollout has stopped"
    return reason


def _plain_result(result: Any) -> dict[str, Any] | None:
    """What the reward returned, as JSON values."""
    if result is None:
        return None
    plain: dict[str, Any] = result.to_dict() if hasattr(result, "to_dict") else result.model_dump()
    return plain
