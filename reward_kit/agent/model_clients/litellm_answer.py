"""What a LiteLLM answer says: the message as it belongs in the history, and what it used."""

from __future__ import annotations

import sys
from typing import Any

from reward_kit.agent.completion import Completion, Message, Usage
from reward_kit.agent.redaction import label

_RETURNED_FIELDS = ("reasoning_content", "thinking_blocks", "reasoning_details", "reasoning_items")
"""Fields of an answer that some providers want back with the history."""


def without_secrets(completion: Completion, secrets: frozenset[str]) -> Completion:
    """``completion``, without keys in what is not said but told to people."""
    completion.model = label(completion.model, secrets)
    completion.finish_reason = label(completion.finish_reason, secrets)
    return completion


def read_answer(answer: Any, model: str) -> Completion:
    """The completion in a LiteLLM answer; one that is malformed raises whatever reading it raises."""
    choice = answer.choices[0]
    usage = _usage(answer, model)
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


def _usage(answer: Any, model: str) -> Usage:
    usage = getattr(answer, "usage", None)
    prompt_details = getattr(usage, "prompt_tokens_details", None)
    completion_details = getattr(usage, "completion_tokens_details", None)
    cost = answer._hidden_params.get("response_cost")  # noqa: SLF001 - the only place that holds the price
    used = Usage(
        calls=1,
        input_tokens=_tokens(usage, "prompt_tokens"),
        cached_tokens=_tokens(prompt_details, "cached_tokens"),
        output_tokens=_tokens(usage, "completion_tokens"),
        reasoning_tokens=_tokens(completion_details, "reasoning_tokens"),
    )
    told = used.input_tokens or used.output_tokens  # else nobody knows what it cost
    if cost is None or cost < 0 or not told or (cost == 0 and not _is_in_table(answer, model)):
        used.unpriced_calls = 1
    else:
        used.cost = cost
    return used


def _is_in_table(answer: Any, model: str) -> bool:
    """Whether LiteLLM knows a price of the model: for some names that it does not know it takes 0."""
    table = sys.modules["litellm"].model_cost
    provider = answer._hidden_params.get("custom_llm_provider")  # noqa: SLF001 - as above
    return any(key in table for name in (answer.model, model) for key in (name, f"{provider}/{name}"))


def _tokens(counts: Any, name: str) -> int:
    return max(0, getattr(counts, name, None) or 0)
