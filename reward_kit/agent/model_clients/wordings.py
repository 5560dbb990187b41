"""How providers and servers say in their errors what their statuses leave open."""

from __future__ import annotations

import re

from reward_kit.agent.providers.headers import seconds_until

_POLICY = r"content_policy|content management policy|content_filter|safety system"
_TOO_LONG = (
    r"context_length_exceeded|maximum context length|context window",  # OpenAI, vLLM, llama-cpp-python
    r"prompt is too long|prompt exceeds max length",  # Anthropic, Fireworks; Zhipu
    r"exceeds? (?:the )?context limit|maximum context limit",  # Anthropic, with max_tokens
    r"input tokens exceed the configured limit",  # OpenAI
    r"exceeds the available context size|exceed_context_size_error",  # llama.cpp
    r"longer than the model's context length|exceeds the model's (?:maximum )?context length",  # SGLang
    r"longer than the maximum model length|too long to fit into the model",  # vLLM
    r"greater than the context length",  # LM Studio
    r"`inputs` tokens \+ `max_new_tokens` must be|`inputs` must have less than \d+ tokens",  # TGI, Together
    r"too large for model with \d+ maximum context",  # Mistral
    r"too many tokens: |too many input tokens",  # Cohere, Bedrock
    r"input is too long for requested model|prompt tokens \(\d+\) exceed model maximum",  # Bedrock
    r"token count.{0,40}exceeds the (?:maximum number of tokens|limit of \d+)",  # Gemini, Copilot
    r"maximum prompt length is \d+|exceeded model token limit",  # xAI, Kimi
    r"current length is \d+ while limit is \d+",  # Cerebras
    r"range of input length should be",  # DashScope
    r"please reduce the length of the messages",  # Groq
)
_REFUSED_INPUT = re.compile("|".join((*_TOO_LONG, _POLICY)), re.IGNORECASE)
_NEVER_FITS = re.compile(r"request too large for", re.IGNORECASE)
"""How OpenAI says, with the status of a rate limit, that one request has more tokens than the limit."""

_USED_UP = re.compile(r"insufficient_quota|credit balance is too low", re.IGNORECASE)
_QUOTA = re.compile(r"exceeded your current quota", re.IGNORECASE)
"""Google says so of any limit, and lets the quota's name and the time to wait tell which."""
_OF_A_SHORT_TIME = re.compile(r"quotaId.{0,80}Per(?:Second|Minute)", re.IGNORECASE)
_WAIT = re.compile(r"retryDelay\W{1,8}([\d.]+m?s)|please retry in ((?:[\d.]+(?:ms|h|m|s))+)", re.IGNORECASE)
LONGEST_WAIT_OF_A_LIMIT = 600.0
"""Seconds; who is told to wait longer because a quota is exceeded has used it up."""


def refuses_input(status: int | None, said: str) -> bool:
    """Whether the conversation is refused: too long for the model, or against its content policy."""
    if status in (400, 422):
        return _REFUSED_INPUT.search(said) is not None
    return status == 429 and _NEVER_FITS.search(said) is not None


def quota_used_up(said: str) -> bool:
    """Whether an error with status 429 means that nothing is to be had for a long time."""
    if _USED_UP.search(said):
        return True
    if not _QUOTA.search(said) or _OF_A_SHORT_TIME.search(said):
        return False
    wait = named_wait(said)
    return wait is None or wait > LONGEST_WAIT_OF_A_LIMIT


def named_wait(said: str) -> float | None:
    """Seconds to wait that an error names in Google's words."""
    times = [seconds_until(first or second) for first, second in _WAIT.findall(said)]
    return max((seconds for seconds in times if seconds is not None), default=None)
