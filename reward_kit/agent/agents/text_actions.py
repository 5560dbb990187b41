"""The action that a JSON object stands for, under the names that models use for its parts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from reward_kit.agent.agents.lenient_json import read_object
from reward_kit.agent.history import encodable, text_of

RESPOND = "respond"
"""The action that is no tool: it says something to the user."""

_NAMES = ("name", "action", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args", "action_input", "tool_input", "input")
_CONTENTS = ("content", "text", "message", "response", "reply")
_ASIDES = frozenset({"thought", "thoughts", "reasoning"})


@dataclass(frozen=True, slots=True)
class Action:
    """``arguments`` is JSON text, or the plain text that stands in its place."""

    name: str
    arguments: str

    def __init__(self, name: str, arguments: Any) -> None:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        object.__setattr__(self, "name", encodable(name))
        object.__setattr__(self, "arguments", encodable(text))


def action_of(value: dict[str, Any]) -> Action | None:
    """The action that ``value`` is; None where it names none.

    Besides ``{"name", "arguments"}`` it may be the object of a native tool call (``{"function": {...}}``) or
    have the arguments beside the name.
    """
    for name in _NAMES:
        inner = value.get(name)
        if isinstance(inner, dict) and isinstance(inner.get("name"), str):
            return action_of(inner)
    named = next((key for key in _NAMES if isinstance(value.get(key), str) and value[key].strip()), None)
    if named is None:
        return None
    return Action(value[named].strip(), _arguments(value, named))


def _arguments(value: dict[str, Any], named: str) -> Any:
    if "arguments" in value:
        return {} if value["arguments"] is None else value["arguments"]
    for key in _ARGUMENTS:
        if isinstance(value.get(key), dict):
            return value[key]
    return {key: inner for key, inner in value.items() if key != named and key not in _ASIDES}


def said_in(arguments: str) -> str:
    """What the action ``respond`` says: its ``content``, another name for it, or the whole text.

    Nothing where that cannot be told."""
    text = arguments.strip()
    if not text.startswith("{"):
        return text
    try:
        value, _ = read_object(text, 0)
    except ValueError:
        return ""
    key = next((key for key in _CONTENTS if value.get(key)), None)
    if key is None and len(value) == 1:
        key = next(iter(value))
    content = value.get(key) if key is not None else None
    return str(content) if isinstance(content, int | float) else text_of(content)
