"""What a rollout writes down of each tool call and each model call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from reward_kit.agent.completion import Usage

Role = Literal["agent", "user", "judge"]
"""Whose model call it is; ``judge``: the reward's, which asks with a client of its own."""


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

    ``answer`` is what the simulated user's model wrote, thoughts and rejected drafts included; what the
    agent's model wrote is in the messages. ``cached`` says that the answer was a kept one: its usage and
    ``seconds`` are those of the call that was made once. ``error`` says why there was no answer; then
    ``finish_reason`` is ``error`` and the usage is empty.
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
