"""What LiteLLM adds to an answer for itself: kept in the history, sent to those alone who want it back."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reward_kit.agent.base.types import Message

OWN_FIELDS = "provider_specific_fields"
"""Holds signatures of thoughts, refusals, and every field of an answer that LiteLLM does not know."""
_READ_AGAIN = frozenset(
    {
        "anthropic",
        "bedrock",
        "bedrock_converse",
        "deepseek",
        "gemini",
        "moonshot",
        "vertex_ai",
        "vertex_ai_beta",
    }
)
"""Providers for which LiteLLM makes something else of it; strict ones among the others refuse it."""


def sent_messages(messages: Iterable[Message], provider: str | None) -> list[Message]:
    """Copies of ``messages``, since LiteLLM rewrites some, as they are to be sent to ``provider``."""
    if provider in _READ_AGAIN:
        return [dict(message) for message in messages]
    return [{name: value for name, value in one.items() if name != OWN_FIELDS} for one in messages]
