"""The class of a failure: the first that fits, in the order of docs/failures.md.

The stop reason or a decisive fault of the user come first, then the first wrong call if the data differ from
those after the gold actions, then outputs that were not said.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from reward_kit.agent.base.history import History
from reward_kit.agent.base.text import cut
from reward_kit.agent.base.types import UNJUDGED_STOPS
from reward_kit.agent.database.changes import in_one_spelling
from reward_kit.agent.rewards.checks import (
    finds_anywhere,
    is_exact,
    missing_outputs,
    not_compared,
    said_to_user,
)
from reward_kit.agent.scoring.failures.first_fault import (
    ExpectedCall,
    FirstFault,
    argument_differences,
    first_fault,
)
from reward_kit.agent.scoring.failures.row_differences import row_differences, row_line
from reward_kit.agent.scoring.user_faults import find_user_faults

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Changes
    from reward_kit.agent.rollout.gold import GoldReplay
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.scoring.failures.row_differences import RowDifference
    from reward_kit.agent.scoring.user_faults import UserFault

FailureKind = Literal[
    "wrong_tool",
    "wrong_arguments",
    "partially_completed",
    "user_did_not_act",
    "unintended_action",
    "missing_output",
    "max_steps",
    "agent_error",
    "user_error",
    "infrastructure_error",
    "other",
]
FAILURE_KINDS: tuple[FailureKind, ...] = get_args(FailureKind)
SHOWN_ROWS = 20
"""Differing values that a failure holds; the rest is counted."""
LONGEST_ANSWER = 300
"""Characters of a refusing tool's answer that a failure holds."""
NO_SIMULATION = frozenset({"none", "human"})
"""Users that no model simulates."""
_DECIDING_STOPS = frozenset({"user_error", "infrastructure_error", "agent_error", "max_steps"})
"""Stop reasons that are also the class."""


@dataclass(slots=True)
class Failure:
    """The class of a failure, one line of detail, and the first wrong step.

    ``step`` and ``turn`` count from 1; they are the last ones if something was never done. ``call`` is the
    index of the first wrong tool call, None if no call was wrong. ``expected`` and ``made`` hold ``name`` and
    ``arguments`` (``made`` also ``status``, and the ``answer`` if the tool refused); ``arguments`` lists the
    arguments that differ between them. ``rows`` are differences of the final data, ``more_rows`` counts those
    left out; ``unsaid`` are the outputs that were never said; ``not_compared`` is what the reward ignores.
    """

    kind: FailureKind
    detail: str
    step: int | None = None
    turn: int | None = None
    call: int | None = None
    expected: dict[str, Any] | None = None
    made: dict[str, Any] | None = None
    arguments: list[dict[str, Any]] = field(default_factory=list)
    rows: Sequence[RowDifference] = ()
    more_rows: int = 0
    unsaid: list[str] = field(default_factory=list)
    not_compared: Sequence[str] = ()


def expected_calls(gold: Iterable[Mapping[str, Any]], is_shared: bool) -> list[ExpectedCall]:
    """Stored gold actions; unless they are shared by all rollouts, answers after a change are not known."""
    expected, is_known = [], True
    for one in gold:
        writes = bool(one["changes"])
        is_known = is_known and (is_shared or not writes)
        answer = one["content"] if is_known and not writes else None
        by = one.get("by", "agent")
        expected.append(ExpectedCall(one["name"], one["arguments"], writes, one["changes"], answer, by))
    return expected


def classify(
    record: Trace,
    reward: Callable[..., Any],
    *,
    changes: Changes,
    gold: Changes | None,
    expected: Sequence[ExpectedCall] = (),
    gold_fault: str | None = None,
) -> None:
    """Set the ``user_faults`` and the ``failure`` of a finished rollout's record.

    ``changes`` and ``gold`` (None without gold actions) are those of the final and of the expected data since
    the base; ``expected`` are the gold actions in order, ``gold_fault`` the first that could not be done.
    What ``not_compared`` names is ignored; values count as equal that are ``equal_values``, unless the module
    of the reward says ``EXACT``.
    """
    ignored, anywhere = not_compared(reward, record.fields), finds_anywhere(reward)
    made = changes.ignoring(ignored)
    wanted = None if gold is None else gold.ignoring(ignored)
    if wanted is not None and made != wanted and not is_exact(reward):
        wanted, made = in_one_spelling(wanted, made)
    outputs = record.row.scored_outputs
    said = said_to_user(record.messages[record.opening :])
    unsaid = missing_outputs(outputs, said, anywhere=anywhere) if outputs else []
    parts = [score for part, score in (record.metric_scores or {}).items() if part in ("data", "database")]
    scored_by = {*(record.row.score_by or ["data"])}
    accepts = min(parts) >= 1 if parts else scored_by.isdisjoint(("data", "checks", "calls"))
    wanted = made if wanted is not None and accepts else wanted
    faults = None if record.user in NO_SIMULATION else _user_faults(record, made, wanted, unsaid)
    record.user_faults = None if faults is None else [asdict(fault) for fault in faults]
    record.failure = None
    judged = record.scored
    if record.success or (not judged and record.stop_reason not in UNJUDGED_STOPS):
        return
    decisive = next((fault for fault in faults or () if fault.decisive), None)
    failure = classify_failure(
        stop_reason=str(record.stop_reason),
        stop_detail=record.stop_detail,
        tool_calls=record.tool_calls,
        expected=expected,
        differences=row_differences(made, wanted) if judged and wanted is not None else None,
        unsaid=unsaid if judged else [],
        steps=record.steps,
        turns=record.turns,
        user_fault=decisive if judged else None,
        gold_fault=gold_fault,
        reason=None if "data" in scored_by else (record.result or {}).get("reason"),
    )
    failure.not_compared = ignored
    record.failure = asdict(failure)


def classify_played(trace: Trace, task: Task, changes: Changes, gold: GoldReplay | None) -> None:
    """As ``classify``, with the gold actions as they were replayed, if the row has any."""
    classify(
        trace,
        task.reward,
        changes=changes,
        gold=gold.database.changes() if gold else None,
        expected=expected_calls(gold.stored(task), gold.shared) if gold else (),
        gold_fault=gold.fault if gold else None,
    )


def _user_faults(
    record: Trace, made: Changes, wanted: Changes | None, unsaid: Sequence[str]
) -> list[UserFault]:
    missing = bool(unsaid)
    if wanted is not None:
        missing |= not set(wanted) <= set(made)
    elif record.scored:
        missing |= not record.success  # only the reward knows what is missing
    return find_user_faults(
        lines=record.lines,
        instruction=record.fields.get("sim_user_prompt"),
        tool_calls=[call for call in record.tool_calls if call.by == "agent"],
        stop_reason=record.stop_reason,
        missing=missing,
        sent_back=record.sent_back,
        shown=" ".join(call.content for call in record.tool_calls if call.by == "user"),
        given=len(History(record.fields.get("initial_messages") or ()).lines),
    )


def classify_failure(
    *,
    stop_reason: str,
    stop_detail: str | None = None,
    tool_calls: Sequence[ToolCall] = (),
    expected: Sequence[ExpectedCall] = (),
    differences: Sequence[RowDifference] | None = None,
    unsaid: Sequence[str] = (),
    steps: int = 0,
    turns: int = 0,
    user_fault: UserFault | None = None,
    gold_fault: str | None = None,
    reason: str | None = None,
) -> Failure:
    """The failure of a rollout that has a reward below 1, or none.

    ``differences`` compare the final data with those after the gold actions: empty if they agree, None if the
    row has no gold actions or nothing is known. ``expected`` are all gold actions in order, ``unsaid`` the
    outputs that the agent has not said. ``steps`` and ``turns`` is how far the rollout went.
    ``user_fault`` is a fault of the simulated user that decided the rollout; ``gold_fault`` the first gold
    action that could not be done, ``reason`` the reward's if the data do not count.
    """
    fault = None
    if differences:
        why = reason or row_line(differences[0])
        fault = first_fault(tool_calls, expected, differences, stop_reason) or FirstFault("other", why)
    kind: FailureKind = "other"
    if user_fault is not None and stop_reason != "infrastructure_error":
        kind, detail = "user_error", f"{user_fault.kind} (turn {user_fault.turn}): {user_fault.detail}"
    elif stop_reason in _DECIDING_STOPS:
        kind, detail = cast("FailureKind", stop_reason), stop_detail or stop_reason
    elif stop_reason in ("timeout", "budget") and (not fault or fault.made is None or fault.kind == "other"):
        detail = stop_detail or stop_reason
    elif fault is not None:
        kind, detail = fault.kind, fault.detail
        if differences and kind == "other" and fault.made is not None:
            detail = f"{detail}; {why}"
    elif unsaid:
        kind, detail = "missing_output", f"never said: {', '.join(map(repr, unsaid))}"
    elif differences is None:
        detail = "the row has no gold actions to compare with"
    elif gold_fault is not None:
        detail = f"the expected data are not known: {gold_fault}"
    else:
        called = {call.name for call in tool_calls}
        uncalled = dict.fromkeys(want.name for want in expected if want.name not in called)
        never = f"; never called: {', '.join(uncalled)}" if uncalled else ""
        detail = f"data and outputs are as expected, but the reward is not{never}"
    rows = list(differences or ())
    failure = Failure(kind, detail, steps or None, turns or None, unsaid=list(unsaid))
    failure.rows, failure.more_rows = rows[:SHOWN_ROWS], len(rows[SHOWN_ROWS:])
    if fault is not None:
        _add_calls(failure, fault.made, fault.expected)
    return failure


def _add_calls(failure: Failure, made: ToolCall | None, wanted: ExpectedCall | None) -> None:
    """Add the first wrong call, and the one that was expected."""
    if made is not None:
        failure.step, failure.turn, failure.call = made.step, made.turn, made.index
        failure.made = {"name": made.name, "arguments": made.arguments, "status": made.status}
        if made.status != "ok":
            failure.made["answer"] = cut(made.content, LONGEST_ANSWER)
        if made.by != "agent":
            failure.made["by"] = made.by
    if wanted is not None:
        failure.expected = {"name": wanted.name, "arguments": dict(wanted.arguments)}
        if wanted.by != "agent":
            failure.expected["by"] = wanted.by
        if made is not None and made.name == wanted.name:
            failure.arguments = argument_differences(wanted.arguments, made.arguments)
