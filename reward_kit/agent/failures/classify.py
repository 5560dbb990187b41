"""The class of a failure, the first that fits:

- ``user_error``, ``infrastructure_error``, ``agent_error``, ``max_steps``: how the rollout stopped says it
  all; ``user_error`` also where the simulated user did something that decided the rollout;
- where the final data is not what the gold actions make of it, the calls are laid beside the gold actions and
  the first fault counts: ``wrong_arguments`` (an expected call was made, or tried, with other arguments),
  ``wrong_tool`` (a call that nobody asked for changed rows, while an expected one is missing),
  ``unintended_action`` (such a call with nothing missing, or a tool that ended the conversation though there
  was more to do), ``partially_completed`` (some or all expected changes are missing);
- ``missing_output``: something that had to be said was not;
- ``other``: none of these, the rollout ran out of time or money, or nothing is known of what was expected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.failures.alignment import align, argument_differences
from reward_kit.agent.failures.first_fault import Fault, first_fault
from reward_kit.agent.failures.kinds import Failure, FailureKind
from reward_kit.agent.failures.outputs import missing_outputs
from reward_kit.agent.failures.rows import RowDifference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.calls import ToolCall
    from reward_kit.agent.failures.kinds import ExpectedCall
    from reward_kit.agent.user_faults import UserFault

SHOWN_ROWS = 20
"""So many differing values a failure holds; the rest is counted."""
LONGEST_ANSWER = 300
"""Characters of a refusing tool's answer that a failure holds."""
_SAID_BY_STOP: dict[str, FailureKind] = {
    "user_error": "user_error",
    "infrastructure_error": "infrastructure_error",
    "agent_error": "agent_error",
    "max_steps": "max_steps",
}
_CUT_SHORT = ("timeout", "budget")


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
    """Why a rollout has a reward below 1, or none.

    ``differences`` tell the final data from those after the gold actions: empty where they agree, None where
    the row has no gold actions or nothing is known; where it is known only that they differ, a line of text
    says so. ``expected`` are all gold actions in order. ``said`` is what the agent said aloud; ``outputs``
    what it had to say. ``steps`` and ``turns`` is how far the rollout went. ``user_fault`` is a fault of the
    simulated user that decided the rollout; ``gold_fault`` the first gold action that could not be done.
    """
    rows = [difference for difference in differences or () if isinstance(difference, RowDifference)]
    fault = None
    if differences:
        aligned = align(tool_calls, expected)
        fault = first_fault(tool_calls, expected, aligned, rows, stop_reason)
        fault = fault or Fault("other", _line(differences[0]))
    unsaid = missing_outputs(outputs, said)
    called = {call.name for call in tool_calls}
    uncalled = dict.fromkeys(want.name for want in expected if want.name not in called)
    kind, detail = _kind(stop_reason, stop_detail, fault, unsaid, differences)
    if kind == "other" and not detail:
        detail = _as_expected(list(uncalled), gold_fault)
    if user_fault is not None and kind != "infrastructure_error":
        kind = "user_error"
        detail = f"{user_fault.kind} (turn {user_fault.turn}): {user_fault.detail}"
    if fault is not None and fault.kind == "other" and fault.made is not None and rows and kind == "other":
        detail = f"{detail}; {rows[0].line()}"
    made = fault.made if fault is not None else None
    wanted = fault.expected if fault is not None else None
    return Failure(
        kind,
        detail,
        step=made.step if made is not None else steps or None,
        turn=made.turn if made is not None else turns or None,
        call=made.index if made is not None else None,
        expected=None if wanted is None else {"name": wanted.name, "arguments": dict(wanted.arguments)},
        made=None if made is None else _made(made),
        arguments=_arguments(fault),
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
    if stop_reason in _SAID_BY_STOP:
        return _SAID_BY_STOP[stop_reason], stop_detail or stop_reason
    if stop_reason in _CUT_SHORT and (fault is None or fault.made is None or fault.kind == "other"):
        return "other", stop_detail or stop_reason
    if fault is not None:
        return fault.kind, fault.detail
    if unsaid:
        return "missing_output", f"never said: {', '.join(map(repr, unsaid))}"
    if differences is None:
        return "other", "the row has no gold actions to compare with"
    return "other", ""


def _as_expected(uncalled: Sequence[str], gold_fault: str | None) -> str:
    """What to say where the final data is what the gold actions make, as far as these could be done."""
    if gold_fault is not None:
        return f"what the data should be is not known: gold {gold_fault}"
    never = f"; never called: {', '.join(uncalled)}" if uncalled else ""
    return f"data and outputs are as expected, but the reward is not{never}"


def _arguments(fault: Fault | None) -> tuple[dict[str, Any], ...]:
    """The arguments that differ, where the call made is one of the expected tool."""
    if fault is None or fault.made is None or fault.expected is None:
        return ()
    if fault.made.name != fault.expected.name:
        return ()
    return tuple(argument_differences(fault.expected.arguments, fault.made.arguments))


def _made(call: ToolCall) -> dict[str, Any]:
    made: dict[str, Any] = {"name": call.name, "arguments": call.arguments, "status": call.status}
    if call.status != "ok":
        made["answer"] = call.content[:LONGEST_ANSWER]
    return made


def _line(difference: RowDifference | str) -> str:
    return difference.line() if isinstance(difference, RowDifference) else difference
