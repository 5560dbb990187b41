"""The class of a failure: the first that fits.

- ``user_error``, ``infrastructure_error``, ``agent_error``, ``max_steps``: the stop reason decides;
  ``user_error`` also if a fault of the simulated user decided the rollout;
- if the final data differ from what the gold actions make of it, the first wrong call decides:
  ``wrong_arguments`` (an expected call was made, or tried, with other arguments), ``wrong_tool`` (a call that
  nobody asked for changed rows, while an expected one is missing), ``unintended_action`` (such a call with
  nothing missing, or a tool that ended the conversation too early), ``partially_completed`` (expected changes
  are missing);
- ``missing_output``: a required output was not said;
- ``other``: none of these, the rollout ran out of time or money, or nothing is known of what was expected.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from reward_kit.agent.scoring.failures.alignment import align, argument_differences
from reward_kit.agent.scoring.failures.first_fault import Fault, first_fault
from reward_kit.agent.scoring.failures.rows import RowDifference
from reward_kit.agent.scoring.outputs import missing_outputs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.scoring.failures.alignment import ExpectedCall
    from reward_kit.agent.scoring.user_faults import UserFault

FailureKind = Literal[
    "wrong_tool",
    "wrong_arguments",
    "partially_completed",
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
_BY_STOP: dict[str, FailureKind] = {
    "user_error": "user_error",
    "infrastructure_error": "infrastructure_error",
    "agent_error": "agent_error",
    "max_steps": "max_steps",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """The class of a failure, one line of detail, and the first wrong step.

    ``step`` and ``turn`` count from 1; they are the last ones if something was never done. ``call`` is the
    index of the first wrong tool call, None if no call was wrong. ``expected`` and ``made`` hold ``name`` and
    ``arguments`` (``made`` also ``status``, and the ``answer`` if the tool refused); ``arguments`` lists the
    arguments that differ between them. ``rows`` are differences of the final data, ``more_rows`` counts those
    left out; ``unsaid`` are the outputs that were never said.
    """

    kind: FailureKind
    detail: str
    step: int | None = None
    turn: int | None = None
    call: int | None = None
    expected: Mapping[str, Any] | None = None
    made: Mapping[str, Any] | None = None
    arguments: Sequence[Mapping[str, Any]] = ()
    rows: Sequence[Mapping[str, Any]] = ()
    more_rows: int = 0
    unsaid: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, one for each field."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def classify_failure(
    *,
    stop_reason: str,
    stop_detail: str | None = None,
    tool_calls: Sequence[ToolCall] = (),
    expected: Sequence[ExpectedCall] = (),
    differences: Sequence[RowDifference | str] | None = None,
    outputs: Sequence[str] = (),
    said: Sequence[str] = (),
    steps: int = 0,
    turns: int = 0,
    user_fault: UserFault | None = None,
    gold_fault: str | None = None,
) -> Failure:
    """The failure of a rollout that has a reward below 1, or none.

    ``differences`` compare the final data with those after the gold actions: empty if they agree, None if the
    row has no gold actions or nothing is known, a line of text if only the fact is known. ``expected`` are
    all gold actions in order. ``said`` are the agent's replies; ``outputs`` must occur in them. ``steps`` and
    ``turns`` is how far the rollout went. ``user_fault`` is a fault of the simulated user that decided the
    rollout; ``gold_fault`` the first gold action that could not be done.
    """
    rows = [difference for difference in differences or () if isinstance(difference, RowDifference)]
    fault = None
    if differences:
        fault = first_fault(tool_calls, expected, align(tool_calls, expected), rows, stop_reason)
        first = differences[0]
        fault = fault or Fault("other", first.line() if isinstance(first, RowDifference) else first)
    unsaid = missing_outputs(outputs, said)
    kind, detail = _kind(stop_reason, stop_detail, fault, unsaid, differences)
    if kind == "other" and not detail:
        detail = _as_expected(tool_calls, expected, gold_fault)
    made = fault.made if fault is not None else None
    if user_fault is not None and kind != "infrastructure_error":
        kind, detail = "user_error", f"{user_fault.kind} (turn {user_fault.turn}): {user_fault.detail}"
    elif fault is not None and fault.kind == kind == "other" and made is not None and rows:
        detail = f"{detail}; {rows[0].line()}"
    wanted = fault.expected if fault is not None else None
    same_tool = made is not None and wanted is not None and made.name == wanted.name
    return Failure(
        kind,
        detail,
        step=made.step if made is not None else steps or None,
        turn=made.turn if made is not None else turns or None,
        call=made.index if made is not None else None,
        expected=None if wanted is None else {"name": wanted.name, "arguments": dict(wanted.arguments)},
        made=None if made is None else _made(made),
        arguments=tuple(argument_differences(wanted.arguments, made.arguments))
        if same_tool and made is not None and wanted is not None
        else (),
        rows=tuple(row.to_json() for row in rows[:SHOWN_ROWS]),
        more_rows=max(0, len(rows) - SHOWN_ROWS),
        unsaid=tuple(unsaid),
    )


def _kind(
    stop_reason: str,
    stop_detail: str | None,
    fault: Fault | None,
    unsaid: Sequence[str],
    differences: Sequence[RowDifference | str] | None,
) -> tuple[FailureKind, str]:
    if stop_reason in _BY_STOP:
        return _BY_STOP[stop_reason], stop_detail or stop_reason
    cut_short = stop_reason in ("timeout", "budget")
    if cut_short and (fault is None or fault.made is None or fault.kind == "other"):
        return "other", stop_detail or stop_reason
    if fault is not None:
        return fault.kind, fault.detail
    if unsaid:
        return "missing_output", f"never said: {', '.join(map(repr, unsaid))}"
    if differences is None:
        return "other", "the row has no gold actions to compare with"
    return "other", ""


def _as_expected(
    tool_calls: Sequence[ToolCall], expected: Sequence[ExpectedCall], gold_fault: str | None
) -> str:
    """The detail if the final data are as expected, as far as the gold actions could be done."""
    if gold_fault is not None:
        return f"the expected data are not known: gold {gold_fault}"
    called = {call.name for call in tool_calls}
    uncalled = dict.fromkeys(want.name for want in expected if want.name not in called)
    never = f"; never called: {', '.join(uncalled)}" if uncalled else ""
    return f"data and outputs are as expected, but the reward is not{never}"


def _made(call: ToolCall) -> dict[str, Any]:
    made: dict[str, Any] = {"name": call.name, "arguments": call.arguments, "status": call.status}
    if call.status != "ok":
        made["answer"] = call.content[:LONGEST_ANSWER]
    return made
