"""Reading the JSON of a chat completion."""

from __future__ import annotations

import json
from typing import Any

from reward_kit.agent.base.types import Completion, Message, Usage
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.agent.models.litellm import import_litellm
from reward_kit.agent.models.litellm_answer import read_answer as read_litellm_answer
from reward_kit.agent.models.openai_http.endpoint import PROVIDER
from reward_kit.agent.models.openai_http.faults import stated_error
from reward_kit.agent.models.openai_http.prices import NotPlain, price

_PLAIN_MESSAGE = frozenset(
    {"role", "content", "tool_calls", "refusal", "reasoning_content", "annotations", "function_call", "audio"}
)
_MAY_BE_EMPTY_ONLY = ("refusal", "annotations", "function_call", "audio")
_PLAIN_USAGE = frozenset(
    {
        "prompt_tokens",
        "completion_tokens",
        "total_tokens",
        "prompt_tokens_details",
        "completion_tokens_details",
    }
)
_TOTALS = ("prompt_tokens", "completion_tokens")
_PLAIN_CHOICE = frozenset({"index", "message", "finish_reason", "logprobs"})
_PLAIN_CALL = frozenset({"id", "type", "function", "index"})
_SAID, _THOUGHT = ("text", "output_text"), ("thinking",)
"""Kinds of parts of a content."""
_FINISH_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter"})


async def read_answer(body: bytes, model: str) -> Completion:
    """The completion in an answer's body; a malformed one raises whatever reading it raises.

    Raises ``StatedError`` for one that holds an error. The shapes that nearly all answers have are read here;
    LiteLLM reads the others, so that they mean the same.
    """
    answer = json.loads(body)
    completion = _plain_completion(answer, model)
    if completion is None:
        error = stated_error(answer)
        if error is not None:
            raise error
        if isinstance(answer, dict) and answer.get("choices") == []:
            raise ValueError("it has no choices")
        await in_thread(import_litellm)  # the first time this takes seconds, which others need not wait
        completion = _read_by_litellm(answer, model)
    return completion


def _plain_completion(answer: Any, model: str) -> Completion | None:
    """The completion of an answer without anything out of the ordinary; None for others."""
    if not isinstance(answer, dict) or answer.get("error") is not None:
        return None
    choices, named = answer.get("choices"), answer.get("model")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    choice = choices[0]
    reason = choice.get("finish_reason")
    if not choice.keys() <= _PLAIN_CHOICE or reason not in _FINISH_REASONS or not isinstance(named, str):
        return None
    message = _plain_message(choice.get("message"))
    usage = _plain_usage(answer.get("usage"), (named, model))
    if message is None or usage is None:
        return None
    if reason == "stop" and message.get("tool_calls"):
        reason = "tool_calls"
    return Completion(message=message, usage=usage, finish_reason=reason, model=named or model)


def _plain_message(message: Any) -> Message | None:
    if (
        not isinstance(message, dict)
        or not message.keys() <= _PLAIN_MESSAGE
        or message.get("role") != "assistant"
    ):
        return None
    if any(message.get(name) for name in _MAY_BE_EMPTY_ONLY):
        return None
    content, reasoning, calls = (
        message.get("content"),
        message.get("reasoning_content"),
        message.get("tool_calls"),
    )
    if not (content is None or (isinstance(content, str) and not content.startswith("<"))):
        return None
    kept: Message = {"role": "assistant", "content": content}
    if calls:
        if not isinstance(calls, list) or not all(map(_is_plain_call, calls)):
            return None
        kept["tool_calls"] = [
            {
                "function": {"arguments": call["function"]["arguments"], "name": call["function"]["name"]},
                "id": call["id"],
                "type": "function",
            }
            for call in calls
        ]
    if reasoning:
        if not isinstance(reasoning, str):
            return None
        kept["reasoning_content"] = reasoning
    return kept


def _is_plain_call(call: Any) -> bool:
    if not isinstance(call, dict) or not call.keys() <= _PLAIN_CALL or call.get("type") != "function":
        return False
    function = call.get("function")
    return (
        isinstance(call.get("id"), str)
        and isinstance(function, dict)
        and function.keys() == {"name", "arguments"}
        and isinstance(function["name"], str)
        and function["name"] != "multi_tool_use.parallel"
        and isinstance(function["arguments"], str)
    )


def _plain_usage(usage: Any, models: tuple[str, str]) -> Usage | None:
    if not isinstance(usage, dict) or not usage.keys() <= _PLAIN_USAGE:
        return None
    prompt = _counts(usage.get("prompt_tokens_details"))
    completion = _counts(usage.get("completion_tokens_details"))
    counts = _counts({name: usage.get(name) for name in _TOTALS})
    if prompt is None or completion is None or counts is None or len(counts) != len(_TOTALS):
        return None
    if not prompt.keys() <= {"cached_tokens"} or not completion.keys() <= {"reasoning_tokens"}:
        return None  # sound and pictures have prices of their own
    used = Usage(
        calls=1,
        input_tokens=counts["prompt_tokens"],
        cached_tokens=prompt.get("cached_tokens", 0),
        output_tokens=counts["completion_tokens"],
        reasoning_tokens=completion.get("reasoning_tokens", 0),
    )
    if used.cached_tokens > used.input_tokens:
        return None
    try:
        cost = price(used, models)
    except NotPlain:
        return None
    used.cost, used.unpriced_calls = cost or 0.0, int(cost is None)
    return used


def _counts(details: Any) -> dict[str, int] | None:
    """The counts by name, without those that are nought (the totals stay); None for what are no counts."""
    if details is None:
        return {}
    if not isinstance(details, dict):
        return None
    counts = {name: value for name, value in details.items() if value is not None}
    if any(not isinstance(value, int) or isinstance(value, bool) or value < 0 for value in counts.values()):
        return None
    return {name: value for name, value in counts.items() if value or name in _TOTALS}


def _put_into_form(answer: Any) -> None:
    """Put right what some servers write in another way, and LiteLLM does not read.

    They leave out the role, which can only be the assistant's, or give the content in parts.
    """
    choices = answer.get("choices") if isinstance(answer, dict) else None
    for choice in choices if isinstance(choices, list) else []:
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict):
            continue
        if message.get("role") is None:
            message["role"] = "assistant"
        content = message.get("content")
        if not isinstance(content, list) or any(_kind(part) not in (*_SAID, *_THOUGHT) for part in content):
            continue
        said, thought = _text_of(content, _SAID), _text_of(content, _THOUGHT)
        if said is not None and thought is not None:
            message["content"] = said
            if thought and not message.get("reasoning_content"):
                message["reasoning_content"] = thought


def _kind(part: Any) -> Any:
    return part.get("type") if isinstance(part, dict) else None


def _text_of(parts: list[Any], kinds: tuple[str, ...]) -> str | None:
    """The text in the parts of these kinds; None where one has none. A thought is a text or parts itself."""
    texts = []
    for part in parts:
        if _kind(part) not in kinds:
            continue
        text = part.get("thinking" if kinds is _THOUGHT else "text")
        text = _text_of(text, _SAID) if isinstance(text, list) else text
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "".join(texts)


def _read_by_litellm(answer: Any, model: str) -> Completion:
    litellm = import_litellm()
    _put_into_form(answer)
    from litellm.litellm_core_utils.llm_response_utils.convert_dict_to_response import (
        convert_to_model_response_object,
    )

    try:
        response: Any = convert_to_model_response_object(
            response_object=answer, model_response_object=litellm.ModelResponse(), hidden_params={}
        )
    except litellm.APIError as error:
        raise ValueError(error.message) from error  # its status is made up: the answer's was 200
    return read_litellm_answer(response, model, PROVIDER)
