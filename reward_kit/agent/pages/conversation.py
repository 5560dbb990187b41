"""What was said and done in a rollout, in the order in which it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.history import shown_text
from reward_kit.agent.pages.rendering import pretty

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.calls import ToolCall
    from reward_kit.agent.runs.rollout_record import RolloutRecord


@dataclass(slots=True)
class CallEntry:
    """A tool call with its answer; ``made`` is how it ran, None where it was never run.

    One that ``is_given`` stands in the row, as part of what was said before.
    """

    name: str
    arguments: str
    answer: str | None = None
    made: ToolCall | None = None
    is_wrong: bool = False
    is_given: bool = False

    @property
    def status(self) -> str:
        if self.made is None:
            return "given by the row" if self.is_given else "not run"
        return self.made.status


@dataclass(slots=True)
class Entry:
    """A message: who spoke, what was said and thought, and the calls that it made."""

    role: str
    text: str
    thought: str = ""
    calls: list[CallEntry] = field(default_factory=list)


def conversation(record: RolloutRecord) -> Iterator[Entry]:
    """The messages of a rollout, answers of tools at their calls; the first wrong call is marked."""
    made = {call.id: call for call in record.tool_calls}
    given = {
        call["id"]
        for message in record.fields.get("initial_messages") or ()
        for call in message.get("tool_calls") or ()
    }
    wrong = (record.failure or {}).get("call")
    open_calls: dict[str, CallEntry] = {}
    for message in record.messages:
        answered = open_calls.pop(str(message.get("tool_call_id")), None)
        if message["role"] == "tool" and answered is not None:
            answered.answer = pretty(shown_text(message.get("content")))
            continue
        entry = Entry(message["role"], shown_text(message.get("content")), _thought(message))
        for call in message.get("tool_calls") or ():
            found = made.get(call["id"])
            shown = CallEntry(call["function"]["name"], pretty(call["function"]["arguments"]), made=found)
            shown.is_given = call["id"] in given
            shown.is_wrong = wrong is not None and found is not None and found.index == wrong
            open_calls[call["id"]] = shown
            entry.calls.append(shown)
        yield entry


def _thought(message: Mapping[str, Any]) -> str:
    thought = message.get("reasoning_content")
    return thought if isinstance(thought, str) else ""
