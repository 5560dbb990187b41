"""The agent's spoken replies beside the outputs that a row requires."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.base.text import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reward_kit.agent.base.types import Message


def replies(messages: Sequence[Message], opening: int) -> list[str]:
    """The agent's messages without tool calls, as texts; the first ``opening`` messages are skipped."""
    return [
        text_of(message.get("content"))
        for message in messages[opening:]
        if message["role"] == "assistant" and not message.get("tool_calls")
    ]


def missing_outputs(outputs: Sequence[str], said: Sequence[str]) -> list[str]:
    """The ``outputs`` that no text of ``said`` contains.

    Case is ignored, and so are commas in ``said``, which separate thousands (the rule of tau-bench).
    """
    texts = [text.replace(",", "").lower() for text in said]
    return [output for output in outputs if not any(output.lower() in text for text in texts)]


def turn_of_success(
    messages: Sequence[Message], opening: int, changed_in_turns: Iterable[int], outputs: Sequence[str]
) -> int:
    """The turn (from 1) in which a successful rollout had done everything that counts.

    The last turn in which a tool call changed rows, or the first by which all ``outputs`` had been said,
    whichever is later; 1 if nothing had to be done or said. ``opening`` is the number of messages that the
    rollout began with.
    """
    turn = max(changed_in_turns, default=1)
    if not outputs:
        return turn
    said = replies(messages, opening)
    needed = next(
        (count for count in range(1, len(said)) if not missing_outputs(outputs, said[:count])), len(said)
    )
    return max(turn, needed)
