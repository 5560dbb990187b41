"""A played rollout as a row: its writing calls become the gold actions.

with load_rollout("first lend.1#1") as trace:
    print(row_of(trace, "lend.2"))
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.types import STOP_TOKEN
from reward_kit.agent.rewards.checks import missing_outputs, said_to_user
from reward_kit.agent.rewards.made_up_ids import SHORTEST_TEXT
from reward_kit.agent.rows.field_checks import REFERENCE
from reward_kit.agent.rows.task_row import KNOWN_FIELDS, Action

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.rollout.trace import Trace

LONGEST_OUTPUT = 100
"""Characters of a value in a tool's answer that may become an output."""

Way = tuple[str | int, ...]
Key = tuple[type, Any]
"""A value with its type: 1 is neither True nor 1.0."""


def row_of(
    trace: Trace, row_id: str | None = None, *, like: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The row ``like`` (default: the one that was played) with the answer that the rollout gives.

    The actions are the calls that changed rows, and one that ended the rollout. A key that a tool made up is
    written as a reference to the result that has it. If nothing changed, and the row has no outputs, these
    are the values of tool results that the agent said and the user had not. In a row without a conversation
    the lines of the user become its first message.
    """
    row = stated_fields(trace.fields) if like is None else dict(like)
    row["id"] = row_id or trace.row_id
    asked = [line.text for line in trace.lines if line.speaker == "user" and STOP_TOKEN not in line.text]
    if asked and not row.get("initial_messages") and not row.get("sim_user_prompt"):
        row["initial_messages"] = [{"role": "user", "content": "\n".join(asked)}]
    row["actions"] = actions_of(trace)
    if not any(call.changes for call in trace.tool_calls) and not row.get("outputs"):
        row["outputs"] = list(_answers(trace, asked))
    return {name: value for name, value in row.items() if value is not None and (value or name != "outputs")}


def stated_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row without the usual values."""
    return {name: value for name, value in fields.items() if value != KNOWN_FIELDS.get(name, ...)}


def actions_of(trace: Trace) -> list[dict[str, Any]]:
    """The calls of a rollout as the gold actions of a row; see ``row_of``."""
    calls = [call for call in trace.tool_calls if call.status == "ok"]
    references = _references(calls)
    kept = {number for number, call in enumerate(calls) if call.changes}
    if trace.stop_reason == "terminal_tool" and calls:
        kept.add(len(calls) - 1)
    waiting = list(kept)
    while waiting:  # the call whose result has a made-up key is needed, too
        sources = {source for source, _ in references[waiting.pop()].values()} - kept
        kept |= sources
        waiting += sources
    positions = {number: position for position, number in enumerate(sorted(kept))}

    def referring(value: Any, known: Mapping[Way, tuple[int, Way]], way: Way = ()) -> Any:
        if way in known:
            source, place = known[way]
            return {REFERENCE: [positions[source], *place]}
        if isinstance(value, dict):
            return {name: referring(one, known, (*way, name)) for name, one in value.items()}
        if isinstance(value, list):
            return [referring(one, known, (*way, number)) for number, one in enumerate(value)]
        return value

    return [
        Action(
            calls[number].name, referring(calls[number].arguments, references[number]), by=calls[number].by
        ).to_json()
        for number in positions
    ]


def _references(calls: Sequence[ToolCall]) -> list[dict[Way, tuple[int, Way]]]:
    """For each call, the places of made-up keys in its arguments: the call and the place in its result."""
    made: dict[Key, str] = {}
    shown: dict[Key, tuple[int, Way]] = {}
    found = []
    for number, call in enumerate(calls):
        given = {way: (type(value), value) for way, value in _values(call.arguments)}
        found.append(
            {
                way: shown[key]
                for way, key in given.items()
                if key in shown and _is_meant(way, key[1], made[key], shown[key][1])
            }
        )
        for change in call.changes:
            if change["op"] == "insert":
                for (column, *_), value in _values(change.get("key") or {}):
                    if (type(value), value) not in given.values():
                        made[type(value), value] = str(column)
        for way, value in _values(_result(call)):
            if (type(value), value) in made:
                shown.setdefault((type(value), value), (number, way))
    return found


def _is_meant(way: Way, value: Any, column: str, shown: Way) -> bool:
    """True unless the value of an argument may equal a made-up key by chance: its name then tells."""
    if isinstance(value, str) and len(value) >= SHORTEST_TEXT:
        return True
    name = next(str(part) for part in reversed(way) if isinstance(part, str))
    return name in shown or name.casefold().removesuffix("s").endswith(column.casefold())


def _result(call: ToolCall) -> Any:
    """The result as a JSON object or array, or as the text that it is."""
    try:
        found = json.loads(call.content)
    except ValueError:
        return call.content
    return found if isinstance(found, dict | list) else call.content


def _values(value: Any, way: Way = ()) -> Iterator[tuple[Way, Any]]:
    """The texts and numbers in a JSON value, each with the path to it."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _values(one, (*way, key))
    elif isinstance(value, str | int | float):
        yield way, value


def _answers(trace: Trace, asked: Sequence[str]) -> Iterator[str]:
    """The values in results of tools that the agent said before the user did."""
    said = said_to_user(trace.messages[trace.opening :])
    shown = (call for call in trace.tool_calls if call.by == "agent")
    values = (value for call in shown for _, value in _values(_result(call)))
    for text in dict.fromkeys(str(value) for value in values if not isinstance(value, bool)):
        is_said = 0 < len(text) <= LONGEST_OUTPUT and not missing_outputs([text], said)
        if is_said and missing_outputs([text], asked):
            yield text
