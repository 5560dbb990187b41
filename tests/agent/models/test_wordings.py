"""What errors of providers mean, in the words that these use."""

import json
from typing import Any

import pytest

from reward_kit.agent.models.errors import named_wait, quota_used_up, refuses_input

TOO_LONG = {
    "OpenAI": "This model's maximum context length is 8192 tokens.",
    "OpenAI, responses": "Your input exceeds the context window of this model.",
    "Anthropic": "prompt is too long: 213462 tokens > 200000 maximum",
    "llama.cpp": "the request exceeds the available context size (4096 tokens), try increasing it",
    "llama-cpp-python": "Requested tokens (5000) exceed context window of 4096",
    "LM Studio": "The number of tokens to keep from the initial prompt is greater than the context length",
    "Ollama": "the input length exceeds the context length",
    "SGLang": "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "vLLM": "The decoder prompt (length 40000) is longer than the maximum model length of 32768.",
    "TGI": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000 inputs",
    "Mistral": "Prompt contains 65673 tokens, too large for model with 32768 maximum context length",
    "Cohere": "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 5000.",
    "Bedrock": "Input is too long for requested model.",
    "Gemini": "The input token count (1594712) exceeds the maximum number of tokens allowed (1048576).",
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Kimi": "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",
    "Cerebras": "Please reduce the length. Current length is 9000 while limit is 8192",
    "DashScope": "Range of input length should be [1, 30720]",
}
OTHER = [
    "Invalid 'user': string too long. Expected a string with maximum length 64.",
    "max_tokens is too large: 99999. This model supports at most 16384 completion tokens.",
    "Unsupported value: 'temperature' does not support 0.2 with this model.",
    "Invalid value for 'max_tokens': it must be less than 4096",
    "Unknown parameter: 'context_length'.",
]


@pytest.mark.parametrize("said", TOO_LONG.values(), ids=TOO_LONG)
@pytest.mark.parametrize("status", [400, 422])
def test_a_conversation_that_is_too_long_is_recognised(status: int, said: str) -> None:
    assert refuses_input(status, said)
    assert not refuses_input(500, said)


def test_a_moderated_conversation_is_refused_whatever_the_status() -> None:
    assert refuses_input(403, "a/b requires moderation on Z. Your input was flagged for x.")
    assert not refuses_input(403, "Your key may not use this model.")


@pytest.mark.parametrize("said", OTHER)
def test_other_bad_requests_are_not_taken_for_one(said: str) -> None:
    assert not refuses_input(400, said)


def google(quota: str, delay: str | None, said: str = "") -> str:
    """An error of Google's, as its text."""
    details: list[dict[str, Any]] = [{"violations": [{"quotaId": quota, "quotaValue": "15"}]}]
    if delay is not None:
        details.append({"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": delay})
    message = "You exceeded your current quota, please check your plan and billing details." + said
    return json.dumps([{"error": {"code": 429, "message": message, "details": details}}])


MINUTE = "GenerateRequestsPerMinutePerProjectPerModel-FreeTier"
DAY = "GenerateRequestsPerDayPerProjectPerModel"


@pytest.mark.parametrize(
    ("said", "used_up", "seconds"),
    [
        (google(MINUTE, "7s"), False, 7.0),
        (google(MINUTE, "6s", " Please retry in 7.25s."), False, 7.25),
        (google(DAY, None), True, None),
        (google(DAY, "12s"), False, 12.0),
        ("You exceeded your current quota. Please retry in 320.5ms.", False, 0.3205),
        ("You exceeded your current quota. Please retry in 11h3m2.5s.", True, 39782.5),
        ("insufficient_quota You exceeded your current quota, please check your plan", True, None),
        ("You exceeded your current quota, please check your plan and billing details.", True, None),
        ("Your credit balance is too low to access the Anthropic API.", True, None),
        ("Error: Insufficient Balance", True, None),
        ("Rate limit reached for gpt-4o-mini. Please try again in 20ms.", False, None),
    ],
)
def test_a_quota_that_comes_back_soon_is_a_limit(said: str, used_up: bool, seconds: float | None) -> None:
    assert quota_used_up(said) is used_up
    assert named_wait(said) == (None if seconds is None else pytest.approx(seconds))
