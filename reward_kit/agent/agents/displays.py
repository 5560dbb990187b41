"""Example conversations for an agent to learn from: a .jsonl file, checked before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.files import read_text
from reward_kit.agent.bundles.message_check import message_faults, show
from reward_kit.agent.history import encodable, text_of
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.completion import Message

FORM = (
    'Each line is an object with "messages_display", a conversation as text, '
    'or "messages", a list of messages in the OpenAI format.'
)


def read_displays(path: str | Path) -> list[str]:
    """The conversations in a file, as text, in its order; blank lines are passed over.

    Raises ``BundleError`` with the file and line of the first fault.
    """
    lines = read_text(Path(path)).split("\n")  # what else ends lines may stand inside of a JSON string
    displays = [_display(line, f"{path}:{number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not displays:
        raise BundleError("holds no example conversation", place=str(path), remedy=FORM)
    return displays


def _display(line: str, place: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"is not valid JSON: {error}", place=place, remedy=FORM) from None
    if not isinstance(value, dict):
        raise BundleError(f"is {show(value)}, not an object", place=place, remedy=FORM)
    if "messages_display" in value:
        text = value["messages_display"]
        if not isinstance(text, str) or not text.strip():
            raise BundleError(f'"messages_display" is {show(text)}, not a text', place=place, remedy=FORM)
        return encodable(text.strip())
    if "messages" not in value:
        raise BundleError('has neither "messages_display" nor "messages"', place=place, remedy=FORM)
    return _rendered(_checked(value["messages"], place))


def _checked(messages: Any, place: str) -> list[Message]:
    if not isinstance(messages, list) or not any(
        not isinstance(message, dict) or message.get("role") != "system" for message in messages
    ):
        raise BundleError(f'"messages" is {show(messages)}, not a conversation', place=place, remedy=FORM)
    for way, fault in message_faults(messages):
        where = "".join(f"[{key!r}]" for key in way)
        raise BundleError(f"messages{where}: {fault}", place=place)
    return messages


def _rendered(messages: Sequence[Message]) -> str:
    """A conversation as text. A system prompt is left out: the agent has that of its own row."""
    return "\n".join(line for message in messages for line in _lines(message))


def _lines(message: Message) -> Iterator[str]:
    text = text_of(message.get("content")).strip()
    speaker = {"user": "User", "assistant": "Agent", "tool": "Tool result"}.get(message["role"])
    if speaker and text:
        yield f"{speaker}: {text}"
    for call in message.get("tool_calls") or ():
        yield f"Agent calls {call['function']['name']} with {call['function']['arguments']}"
