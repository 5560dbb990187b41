"""Writing the JSON of a request for a chat completion."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.models.own_fields import OWN_FIELDS

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Message

_KEPT_TOOLS = 16


class RequestWriter:
    """Writes the requests of one model; what is the same in all of them is encoded once.

    ``arguments`` are those of the body beside messages, tools and seed.
    """

    def __init__(self, model: str, arguments: dict[str, Any]) -> None:
        self._fixed = _encoded({"model": model, **arguments})[1:-1]
        self._tools: dict[tuple[int, ...], tuple[list[dict[str, Any]], str]] = {}

    def write(
        self,
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None,
        seed: int | None,
        parallel_tool_calls: bool,
    ) -> bytes:
        """The body of one request."""
        parts = [self._fixed, f'"messages": {_encoded([_sent(message) for message in messages])}']
        if seed is not None:
            parts.append(f'"seed": {seed:d}')
        if tools:
            parts.append(f'"tools": {self._tools_text(tools)}')
            if not parallel_tool_calls:
                parts.append('"parallel_tool_calls": false')
        return f"{{{', '.join(parts)}}}".encode()

    def _tools_text(self, tools: list[dict[str, Any]]) -> str:
        """The text of these tools; they are kept with it, so that their ids stay their own."""
        key = tuple(map(id, tools))
        known = self._tools.get(key)
        if known is None:
            if len(self._tools) >= _KEPT_TOOLS:
                self._tools.clear()
            known = self._tools[key] = list(tools), _encoded(tools)
        return known[1]


def _sent(message: Message) -> Message:
    """A message as it is sent: without what is None, as LiteLLM does, and without LiteLLM's own field."""
    if None not in message.values() and OWN_FIELDS not in message:
        return message
    return {name: value for name, value in message.items() if value is not None and name != OWN_FIELDS}


def _encoded(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
