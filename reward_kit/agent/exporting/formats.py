"""What a conversation looks like for those who train on it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, get_args

from reward_kit.agent.base.history import parse_arguments

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.base.types import Message

Format = Literal["full", "openai", "trl"]
FORMATS: tuple[Format, ...] = get_args(Format)
OPENAI_COLUMNS = ("messages", "tools", "parallel_tool_calls")
"""All that a line of OpenAI's fine-tuning may have (``FineTuneChatRequestInput`` of its OpenAPI document)."""

_OPENAI_KEYS = {
    "assistant": ("role", "content", "name", "refusal", "tool_calls", "weight"),
    "tool": ("role", "content", "tool_call_id"),
}
_OPENAI_OTHERS = ("role", "content", "name")
_TEMPLATE_KEYS = ("reasoning_content", "tool_calls", "tool_call_id", "name")


def conversation(messages: Sequence[Message], opening: int, layout: Format) -> list[Message] | None:
    """The messages in a format; None where it is one for training and the agent says and calls nothing.

    The first ``opening`` messages were there before anybody spoke. Formats for training end with the agent's
    last message. Raises ``KeyError`` or ``TypeError`` for what is no message.
    """
    roles = [message["role"] for message in messages]
    if layout == "full":
        return list(messages)
    end = len(messages)
    while end > opening and roles[end - 1] != "assistant":
        end -= 1
    if end <= opening:
        return None
    of_format = _openai_message if layout == "openai" else _template_message
    return [of_format(message) for message in messages[:end]]


def _openai_message(message: Message) -> Message:
    keys = _OPENAI_KEYS.get(message["role"], _OPENAI_OTHERS)
    kept = {key: message[key] for key in keys if message.get(key) is not None}
    if kept.get("tool_calls"):
        kept["tool_calls"] = [
            _tool_call(call, _text(call["function"]["arguments"])) for call in kept["tool_calls"]
        ]
    return kept


def _template_message(message: Message) -> Message:
    """Arguments are objects: most templates write text as text within text."""
    first = {
        "role": message["role"],
        "content": message.get("content") or "",
    }  # None would be written as a word
    kept = first | {key: message[key] for key in _TEMPLATE_KEYS if message.get(key)}
    if "tool_calls" in kept:
        kept["tool_calls"] = [
            _tool_call(call, _object(call["function"]["arguments"])) for call in kept["tool_calls"]
        ]
    return kept


def _tool_call(call: dict[str, Any], arguments: Any) -> dict[str, Any]:
    return {
        "id": call["id"],
        "type": "function",
        "function": {"name": call["function"]["name"], "arguments": arguments},
    }


def _text(arguments: Any) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _object(arguments: Any) -> Any:
    parsed = parse_arguments(arguments)
    return arguments if parsed is None else parsed
