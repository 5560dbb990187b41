"""What a rollout writes down of each tool call and each model call."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.cut_text import cut
from reward_kit.agent.history import encodable

if TYPE_CHECKING:
    from reward_kit.agent.completion import Usage

Role = Literal["agent", "user", "judge"]
"""Whose model call it is; ``judge``: the reward's, which asks with a client of its own."""


def call_line(name: str, arguments: Any, length: int | None = 1000) -> str:
    """``cancel_order({"order_id": "#W1"})``, the arguments cut after ``length`` characters."""
    return f"{name}({json_text(arguments, length)})"


def json_text(value: Any, length: int | None = None) -> str:
    """A value as JSON in one line, for people and models; cut after ``length`` characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if length is None else cut(text, length)


def names_of_own_tools(own: Any, bundled: list[dict[str, Any]]) -> list[str] | None:
    """The names in an agent's ``own`` list of tools; None where it is none, or the same as the bundle's.

    An agent may put anything there: a tool of a provider's goes by its type, what is no tool by ``?``.
    """
    if not isinstance(own, list | tuple) or own == bundled:
        return None
    return [_name(tool) for tool in own]


def _name(tool: Any) -> str:
    if not isinstance(tool, dict):
        return "?"
    function = tool.get("function")
    named = function.get("name") if isinstance(function, dict) else tool.get("type")
    return encodable(str(named or "?"))


@dataclass(slots=True)
class ToolCall:
    """One tool call as it ran.

    ``step`` and ``turn`` count from 1. ``arguments`` is the parsed object, or the text that could not be
    parsed. ``started`` is in Unix seconds; ``changes`` are the rows that the call changed.
    """

    index: int
    id: str
    step: int
    turn: int
    name: str
    arguments: dict[str, Any] | str
    content: str
    status: str
    changes: list[dict[str, Any]]
    started: float
    seconds: float


@dataclass(slots=True)
class ModelCall:
    """One model call as it was made; ``started`` in Unix seconds, ``seconds`` with retries.

    ``waited`` are the seconds, apart from ``seconds``, for which limits of calls held it back. ``answer`` is
    what the simulated user's model wrote, thoughts and rejected drafts included; what the agent's model wrote
    is in the messages. ``cached`` says that the answer was a kept one: its usage and ``seconds`` are those of
    the call that was made once. ``error`` says why there was no answer; then ``finish_reason`` is ``error``
    and the usage is empty.
    """

    role: Role
    step: int
    turn: int
    model: str
    finish_reason: str
    usage: Usage
    started: float
    seconds: float
    answer: str | None = None
    cached: bool = False
    error: str | None = None
    waited: float = 0.0
