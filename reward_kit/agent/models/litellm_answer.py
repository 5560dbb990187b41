"""What a LiteLLM answer says: the message as it belongs in the history, and what it used."""

from __future__ import annotations

import sys
from typing import Any

from reward_kit.agent.base.redaction import label
from reward_kit.agent.base.types import Completion, Message, Usage

_RETURNED_FIELDS = ("reasoning_content", "thinking_blocks", "reasoning_details", "reasoning_items")
"""Fields of an answer that some providers want back with the history."""


def without_secrets(completion: Completion, secrets: frozenset[str]) -> Completion:
    """``completion``, without keys in what is not said but told to people."""
    completion.model = label(completion.model, secrets)
    completion.finish_reason = label(completion.finish_reason, secrets)
    return completion


def read_answer(answer: Any, model: str, provider: str) -> Completion:
    """The completion in a LiteLLM answer; raises ``ValueError`` for one without choices."""
    if not answer.choices:
        raise ValueError("it has no choices")
    choice = answer.choices[0]
    usage = _usage(answer, model, provider)
    return Completion(
        message=_message(choice.message),
        usage=usage,
        finish_reason=str(choice.finish_reason or "stop"),
        model=str(answer.model or model),
    )


def _message(message: Any) -> Message:
    kept: Message = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        kept["tool_calls"] = [_tool_call(call) for call in message.tool_calls]
    for name in _RETURNED_FIELDS:
        value = getattr(message, name, None)
        if value:
            kept[name] = value
    fields = {
        key: value
        for key, value in (getattr(message, "provider_specific_fields", None) or {}).items()
        if value
    }
    if fields:
        kept["provider_specific_fields"] = fields
    return kept


def _tool_call(call: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = call.model_dump(exclude_none=True)
    dumped.pop("index", None)
    return dumped


def _usage(answer: Any, model: str, provider: str) -> Usage:
    usage = getattr(answer, "usage", None)
    prompt_details = getattr(usage, "prompt_tokens_details", None)
    completion_details = getattr(usage, "completion_tokens_details", None)
    cost = _cost(answer, model, provider)
    used = Usage(
        calls=1,
        input_tokens=_tokens(usage, "prompt_tokens"),
        cached_tokens=_tokens(prompt_details, "cached_tokens"),
        output_tokens=_tokens(usage, "completion_tokens"),
        reasoning_tokens=_tokens(completion_details, "reasoning_tokens"),
    )
    counted = used.input_tokens or used.output_tokens  # without tokens the cost is unknown
    if cost is None or cost < 0 or not counted or (cost == 0 and not _has_price(answer, model, provider)):
        used.unpriced_calls = 1
    else:
        used.cost = cost
    return used


def _cost(answer: Any, model: str, provider: str) -> float | None:
    """US dollars for the answer; None if LiteLLM knows no price."""
    try:
        return float(
            sys.modules["litellm"].completion_cost(answer, model=model, custom_llm_provider=provider)
        )
    except Exception:  # noqa: BLE001 - LiteLLM raises a bare Exception for a model without a price
        return None


def _has_price(answer: Any, model: str, provider: str) -> bool:
    """True if LiteLLM's table has the model: for some names that it lacks the cost is 0."""
    table = sys.modules["litellm"].model_cost
    return any(key in table for name in (answer.model, model) for key in (name, f"{provider}/{name}"))


def _tokens(counts: Any, name: str) -> int:
    return max(0, getattr(counts, name, None) or 0)
