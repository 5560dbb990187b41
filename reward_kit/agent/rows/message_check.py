"""Checks of a conversation in the OpenAI chat format, strict enough for the strictest providers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import cut, tamed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reward_kit.agent.base.types import Message

Fault = tuple[tuple[str | int, ...], str]
"""A fault, and the path to it inside the value that was checked: object keys and list positions."""

ROLES = ("system", "user", "assistant", "tool")
CALLERS = ("assistant", "user")
"""Roles of messages with tool calls: the agent's and the user's own."""
_CALL = '{"id": "…", "type": "function", "function": {"name": "…", "arguments": "text of a JSON object"}}'
_KINDS: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def message_faults(messages: Sequence[Any]) -> Iterator[Fault]:
    """The faults of a conversation: of its messages first, then of the order of tool calls and results."""
    single = [
        ((index, *way), fault)
        for index, message in enumerate(messages)
        for way, fault in _single_faults(message)
    ]
    yield from single or _order_faults(messages)


def split_opening(messages: Iterable[Message]) -> tuple[list[Message], dict[int, list[Message]]]:
    """The messages that the agent sees; and the user's calls with their answers, by the number before them.

    The latter are as in ``Trace.user_messages``: those of the user's model, whose role is the assistant.
    """
    seen: list[Message] = []
    own: dict[int, list[Message]] = {}
    calls: set[str] = set()
    for message in messages:
        if message["role"] == "user" and message.get("tool_calls"):
            calls = {call["id"] for call in message["tool_calls"]}
            own.setdefault(len(seen), []).append({**message, "role": "assistant"})
        elif message["role"] == "tool" and message["tool_call_id"] in calls:
            own[len(seen)].append(message)
        else:
            seen.append(message)
            calls = set()
    return seen, own


def show(value: Any, limit: int = 60) -> str:
    """A JSON value for a message: ``"four" (a string)``; long ones are cut."""
    if value is None:
        return "null"
    text = tamed(cut(json.dumps(value, ensure_ascii=False, default=repr), limit))
    kind = _KINDS.get(type(value))
    return f"{text} ({kind})" if kind else text


def _single_faults(message: Any) -> Iterator[Fault]:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ROLES:
        expected = f'a message such as {{"role": "user", "content": "…"}} with a role of {", ".join(ROLES)}'
        yield (), f"expected {expected}; got {show(message)}"
        return
    content, calls = message.get("content"), message.get("tool_calls")
    if content is None and (role not in CALLERS or not calls):
        yield ("content",), "there is none; only a message with tool calls can do without"
    elif content is not None and not isinstance(content, str) and not _are_parts(content):
        expected = 'text or a list of parts such as {"type": "text", "text": "…"}'
        yield ("content",), f"expected {expected}, got {show(content)}"
    if role == "tool" and not _is_name(message.get("tool_call_id")):
        yield ("tool_call_id",), "a tool message names the call it answers, as text"
    if role not in CALLERS and calls:
        yield ("tool_calls",), f"only agent (assistant) and user can call tools, this is from {role!r}"
    elif calls is not None and (not isinstance(calls, list) or not calls or not all(map(_is_call, calls))):
        yield ("tool_calls",), f"expected a list of tool calls of the form {_CALL}, got {show(calls)}"


def _are_parts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(part, dict)
        and _is_name(part.get("type"))
        and (part["type"] != "text" or isinstance(part.get("text"), str))
        for part in value
    )


def _is_call(value: Any) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    return (
        isinstance(function, dict)
        and _is_name(value.get("id"))
        and _is_name(function.get("name"))
        and _is_json_object(function.get("arguments"))
    )


def _order_faults(messages: Sequence[dict[str, Any]]) -> Iterator[Fault]:
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            call = message["tool_call_id"]
            if call in open_calls:
                open_calls.remove(call)
            else:
                yield (index, "tool_call_id"), f"no tool call {call!r} is waiting for an answer here"
            continue
        if open_calls:
            yield (index,), f"the tool call {open_calls[0]!r} before it has no answer"
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        if len(set(open_calls)) < len(open_calls):
            yield (index, "tool_calls"), "two tool calls have the same id"
    if open_calls:
        yield (len(messages) - 1,), f"the tool call {open_calls[0]!r} has no answer"


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_json_object(value: Any) -> bool:
    try:
        return isinstance(value, str) and isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False
