"""Checks of a conversation in the OpenAI chat format, strict enough for the strictest providers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import cut

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Fault = tuple[tuple[str | int, ...], str]
"""A fault, and the path to it inside the value that was checked: object keys and list positions."""

ROLES = ("system", "user", "assistant", "tool")
_CALL = '{"id": "…", "type": "function", "function": {"name": "…", "arguments": "{…}"}}'
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


def show(value: Any, limit: int = 60) -> str:
    """A JSON value for a message: ``"four" (a string)``; long ones are cut."""
    if value is None:
        return "null"
    text = cut(json.dumps(value, ensure_ascii=False, default=repr), limit)
    if not text.isprintable():  # it is shown on terminals, where some characters do things
        text = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)
    kind = _KINDS.get(type(value))
    return f"{text} ({kind})" if kind else text


def _single_faults(message: Any) -> Iterator[Fault]:
    if not isinstance(message, dict):
        yield (), f'expected a message such as {{"role": "user", "content": "…"}}, got {show(message)}'
        return
    role = message.get("role")
    if role not in ROLES:
        got = f"got {show(role)}" if "role" in message else "there is none"
        yield ("role",), f"expected one of {', '.join(json.dumps(name) for name in ROLES)}; {got}"
        return
    content, calls = message.get("content"), message.get("tool_calls")
    if content is None and (role != "assistant" or not calls):
        yield ("content",), "there is none; only an assistant message with tool calls can do without"
    elif isinstance(content, list) and content:
        yield from _part_faults(content)
    elif content is not None and not isinstance(content, str):
        yield ("content",), f"expected text or a list of parts, got {show(content)}"
    if role == "tool" and not _is_name(message.get("tool_call_id")):
        yield ("tool_call_id",), "a tool message names the call it answers, as text"
    if role == "assistant" and calls is not None:
        yield from _tool_call_faults(calls)
    elif calls:
        yield ("tool_calls",), f"only an assistant message can have tool calls, this one is from {role!r}"


def _part_faults(parts: list[Any]) -> Iterator[Fault]:
    for index, part in enumerate(parts):
        if not isinstance(part, dict) or not _is_name(part.get("type")):
            fault = f'expected a part such as {{"type": "text", "text": "…"}}, got {show(part)}'
            yield ("content", index), fault
        elif part["type"] == "text" and not isinstance(part.get("text"), str):
            yield ("content", index, "text"), f"expected text, got {show(part.get('text'))}"


def _tool_call_faults(calls: Any) -> Iterator[Fault]:
    if not isinstance(calls, list) or not calls:
        yield ("tool_calls",), f"expected a list of one or more tool calls, got {show(calls)}"
        return
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if (
            not isinstance(function, dict)
            or not _is_name(call.get("id"))
            or not _is_name(function.get("name"))
        ):
            yield ("tool_calls", index), f"expected a tool call of the form {_CALL}, got {show(call)}"
        elif not _is_json_object(function.get("arguments")):
            way = ("tool_calls", index, "function", "arguments")
            yield way, f"expected the text of a JSON object, got {show(function.get('arguments'))}"


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
