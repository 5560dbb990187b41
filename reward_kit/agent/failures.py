"""Why a rollout failed, told without a model: from gold actions, tool calls, what was said, and how it
stopped.

The classes, in the order in which they are tried:

- ``user_error``, ``infrastructure_error``, ``agent_error``, ``max_steps``: how the rollout stopped says it
  all;
- where the final data is not what the gold actions make of it, the calls are laid beside the gold actions:
  ``wrong_arguments`` (an expected call was made, with other arguments), ``wrong_tool`` (a call that nobody
  asked for changed rows, while an expected one is missing), ``unintended_action`` (such a call, with nothing
  missing), ``partially_completed`` (some or all expected calls are missing);
- ``missing_output``: something that had to be said was not;
- ``other``: none of these, or nothing is known of what was expected.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.bundles.gold_reference import arguments_match

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.calls import ToolCall

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
_SAID_BY_STOP: dict[str, FailureKind] = {
    "user_error": "user_error",
    "infrastructure_error": "infrastructure_error",
    "agent_error": "agent_error",
    "max_steps": "max_steps",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """The class of a failure and one line on what was seen."""

    kind: FailureKind
    detail: str


@dataclass(frozen=True, slots=True)
class ExpectedCall:
    """A gold action; ``writes`` says whether it changes rows when it is replayed."""

    name: str
    arguments: Mapping[str, Any]
    writes: bool


def classify_failure(
    *,
    stop_reason: str,
    stop_detail: str | None = None,
    tool_calls: Sequence[ToolCall] = (),
    expected: Sequence[ExpectedCall] = (),
    differences: Sequence[str] | None = None,
    outputs: Sequence[str] = (),
    said: Sequence[str] = (),
) -> Failure:
    """The class of a rollout whose reward is below 1.

    ``differences`` are the lines that tell the final data from that of the gold actions: empty where they
    agree, None where the row has no gold actions. ``said`` is what the agent said aloud; ``outputs`` what it
    had to say.
    """
    if stop_reason in _SAID_BY_STOP:
        return Failure(_SAID_BY_STOP[stop_reason], stop_detail or stop_reason)
    if differences:
        return _data_failure(tool_calls, expected, differences)
    missing = missing_outputs(outputs, said)
    if missing:
        return Failure("missing_output", f"never said: {', '.join(map(repr, missing))}")
    if stop_reason in ("timeout", "budget"):
        return Failure("other", stop_detail or stop_reason)
    if differences is None:
        return Failure("other", "the row has no gold actions to compare with")
    return Failure("other", "data and outputs are as expected, but the reward is not")


def missing_outputs(outputs: Sequence[str], said: Sequence[str]) -> list[str]:
    """The outputs that occur in nothing that was said.

    Case is ignored, and so are commas in what was said, which separate thousands (the rule of tau-bench).
    """
    heard = [line.replace(",", "").lower() for line in said]
    return [output for output in outputs if not any(output.lower() in line for line in heard)]


def _data_failure(
    tool_calls: Sequence[ToolCall], expected: Sequence[ExpectedCall], differences: Sequence[str]
) -> Failure:
    missing, surplus = _unmatched(tool_calls, [call for call in expected if call.writes])
    refused = [call for call in tool_calls if call.status != "ok"]
    for wanted in missing:
        made = next((call for call in (*surplus, *refused) if call.name == wanted.name), None)
        if made is not None:
            return Failure(
                "wrong_arguments", f"{wanted.name}: {_argument_difference(wanted.arguments, made.arguments)}"
            )
    if surplus and missing:
        return Failure("wrong_tool", f"expected {_said(missing[0])}, got {_said(surplus[0])}")
    if surplus:
        return Failure("unintended_action", f"nobody asked for {_said(surplus[0])}")
    if missing:
        done = sum(call.writes for call in expected) - len(missing)
        return Failure(
            "partially_completed",
            f"{done} of {done + len(missing)} changes made; missing {_said(missing[0])}",
        )
    return Failure("other", differences[0])


def _unmatched(
    tool_calls: Sequence[ToolCall], expected: Sequence[ExpectedCall]
) -> tuple[list[ExpectedCall], list[ToolCall]]:
    """The expected calls that were not made, and the calls that changed rows though nobody asked for them."""
    missing = list(expected)
    surplus = []
    for call in tool_calls:
        if call.status != "ok":
            continue
        match = next((want for want in missing if _matches(want, call)), None)
        if match is not None:
            missing.remove(match)
        elif call.changes:
            surplus.append(call)
    return missing, surplus


def _matches(expected: ExpectedCall, made: ToolCall) -> bool:
    return expected.name == made.name and arguments_match(expected.arguments, made.arguments)


def _argument_difference(expected: Mapping[str, Any], made: Mapping[str, Any] | str) -> str:
    if isinstance(made, str):
        return f"the arguments are no JSON object: {_short(made)}"
    for name in [*expected, *(name for name in made if name not in expected)]:
        if name not in made:
            return f"{name} is missing, expected {_short(expected[name])}"
        if name not in expected:
            return f"{name} was not expected, got {_short(made[name])}"
        if not arguments_match(expected[name], made[name]):
            return f"{name}: expected {_short(expected[name])}, got {_short(made[name])}"
    return "the right call, refused or made at the wrong time"


def _said(call: ExpectedCall | ToolCall) -> str:
    return f"{call.name}({_short(call.arguments)})"


def _short(value: Any, length: int = 120) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= length else text[: length - 1] + "…"
