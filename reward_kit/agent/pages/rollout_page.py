"""The page of a rollout: its end and the reason, the conversation with changed rows, the costs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.history import shown_text
from reward_kit.agent.base.text import call_line
from reward_kit.agent.records.outcome import is_success, total_usage
from reward_kit.agent.scoring.failures.row_differences import row_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.explain.explanation import Explanation
    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.records.rollout_record import RolloutRecord

ONE_LINE = 90
"""Characters of JSON that stays in one line."""


class Neighbours(NamedTuple):
    """The rollouts of the same evaluation that a page links to."""

    before: RolloutOutcome | None = None
    after: RolloutOutcome | None = None
    next_failed: RolloutOutcome | None = None
    of_row: Sequence[RolloutOutcome] = ()


@dataclass(slots=True)
class CallEntry:
    """A tool call with its answer; ``made`` is the call as it ran, None if it did not run.

    ``status`` is the one to show.
    """

    name: str
    arguments: str
    status: str
    made: ToolCall | None
    is_wrong: bool
    answer: str | None = None


@dataclass(slots=True)
class Entry:
    """A message: its role, text and thought, and its tool calls."""

    role: str
    text: str
    thought: str = ""
    calls: list[CallEntry] = field(default_factory=list)


def rollout_values(
    record: RolloutRecord, around: Neighbours, explanation: Explanation | None = None
) -> dict[str, Any]:
    """The values of the template ``rollout.html``; ``around`` are its links to other rollouts."""
    failure = record.failure or {}
    metrics = (record.result or {}).get("metrics") or {}
    parts = {name: part for name, part in metrics.items() if isinstance(part, dict)}
    calls = {name: failure.get(name) for name in ("expected", "made")}
    return {
        "title": f"{record.row_id} #{record.index + 1}",
        "root": "../",
        "record": record,
        "around": around,
        "passed": record.reward is not None and is_success(record.reward),
        "reason": _reason(record.result, parts),
        "parts": parts,
        "failure": failure,
        **{
            name: call_line(call["name"], call["arguments"]) if call else None for name, call in calls.items()
        },
        "differences": [row_line(row) for row in failure.get("rows") or ()],
        "entries": list(_conversation(record)),
        "gold": [call_line(action.name, action.arguments) for action in record.gold],
        "row": readable(record.fields),
        "total": total_usage(record.usage.values()),
        "explanation": explanation,
    }


def _conversation(record: RolloutRecord) -> Iterator[Entry]:
    """The messages of a rollout, answers of tools with their calls; the first wrong call is marked."""
    made = {call.id: call for call in record.tool_calls}
    opening = record.opening
    wrong = (record.failure or {}).get("call")
    unanswered: dict[str, CallEntry] = {}
    for number, message in enumerate(record.messages):
        text = shown_text(message.get("content"))
        answered = unanswered.pop(str(message.get("tool_call_id")), None)
        if message["role"] == "tool" and answered is not None:
            answered.answer = pretty(text)
            continue
        thought = message.get("reasoning_content")
        entry = Entry(message["role"], text, thought if isinstance(thought, str) else "")
        for call in message.get("tool_calls") or ():
            found = made.get(call["id"])
            shown = CallEntry(
                call["function"]["name"],
                pretty(call["function"]["arguments"]),
                found.status if found else "given by the row" if number < opening else "not run",
                found,
                is_wrong=found is not None and found.index == wrong,
            )
            unanswered[call["id"]] = shown
            entry.calls.append(shown)
        yield entry


def _reason(result: Mapping[str, Any] | None, parts: Mapping[str, Mapping[str, Any]]) -> str:
    """The reason of a reward, unless it repeats the reasons of its ``parts``."""
    reason = rest = str((result or {}).get("reason") or "")
    for part in parts.values():
        rest = rest.replace(str(part.get("reason") or " "), " ")
    return reason if any(character.isalnum() for character in rest) else ""


def pretty(text: str) -> str:
    """JSON with a line for each value, if the text is long and nothing is lost; else the text."""
    if len(text) <= ONE_LINE:
        return text
    try:
        value = json.loads(text)
        forms = (json.dumps(value), json.dumps(value, ensure_ascii=False))
        compact = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return text
    return readable(value) if isinstance(value, dict | list) and text in (*forms, compact) else text


def readable(value: Any) -> str:
    """A value as JSON with a line for each inner value."""
    return json.dumps(value, ensure_ascii=False, indent=2, default=str)
