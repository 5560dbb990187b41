"""Addresses of OpenAI-compatible servers, and the models that are asked there directly."""

from __future__ import annotations

import base64
import os
import re
import sys
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from reward_kit.agent.models.providers import (
    OPENAI,
    base_from_environment,
    check_setup,
    needs_no_key,
    without_key,
)

PROVIDER = OPENAI
DEFAULT_BASE = "https://api.openai.com/v1"
PLAIN_MODELS = re.compile(r"(gpt-4o|gpt-4\.1|gpt-4-turbo|gpt-4|gpt-3\.5-turbo)(-[\w.-]+)?")
"""OpenAI's own models whose requests LiteLLM passes on as they are."""
_REWRITTEN = re.compile(
    r"(^|[/-])(o\d|gpt-5|gpt-6|chatgpt|codex|computer-use)|audio|search|realtime|transcribe|tts"
)
"""Parts of the names of models for which LiteLLM renames or drops parameters, or takes another interface."""
_PASSED_ON = frozenset(
    {
        "frequency_penalty",
        "logit_bias",
        "logprobs",
        "max_completion_tokens",
        "max_tokens",
        "presence_penalty",
        "return_token_ids",
        "seed",
        "stop",
        "temperature",
        "tool_choice",
        "top_p",
        "user",
    }
)
_OF_THE_CONNECTION = frozenset({"api_base", "base_url", "api_key", "extra_headers"})
_LITELLM_SETTINGS = ("LITELLM_PROXY_API_BASE", "OPENAI_ORGANIZATION", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")
"""With one of these in the environment LiteLLM's clients send what the direct client does not."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A model's name at an OpenAI-compatible server, the headers, and the server's address."""

    model: str
    headers: dict[str, str]
    base: str


def find_endpoint(name: str, provider: str | None, model_args: dict[str, Any]) -> Endpoint | None:
    """The endpoint of a model that can be asked directly; None for one that LiteLLM has to ask.

    These are models of the provider ``openai`` (also at other addresses: vLLM, SGLang, Ollama and most others
    speak its protocol), called with arguments that are passed on unchanged. Raises ``ModelSetupError`` for an
    address that is no URL, and for a key that is not set, or that cannot be sent.
    """
    if not model_args.keys() <= _PASSED_ON | _OF_THE_CONNECTION or any(
        map(os.environ.get, _LITELLM_SETTINGS)
    ):
        return None
    model = _openai_name(name, provider)
    if model is None or _REWRITTEN.search(model):
        return None
    given = model_args.get("api_base") or model_args.get("base_url")
    place = f"model {model} ({PROVIDER})"
    check_setup(PROVIDER, model_args, place=place)
    base = str(given or base_from_environment(PROVIDER) or DEFAULT_BASE).rstrip("/")
    base, account = _without_account(base)
    key = model_args.get("api_key") or os.environ.get("OPENAI_API_KEY")
    if not key and (account or needs_no_key(PROVIDER, given)):
        key = "none"
    if not key:
        if "litellm" in sys.modules:  # the program may have given it a key
            return None
        raise without_key("OPENAI_API_KEY", place)
    headers = {
        # an address with user and password asks for these, and there is one such header only
        "Authorization": f"Basic {account}" if account else f"Bearer {key}",
        "Content-Type": "application/json",
        "Accept": "application/json",
        **(model_args.get("extra_headers") or {}),
    }
    return Endpoint(model, headers, base)


def body_arguments(model_args: dict[str, Any]) -> dict[str, Any]:
    """Those of the arguments that belong into the request's body."""
    return {name: value for name, value in model_args.items() if name in _PASSED_ON and value is not None}


def _without_account(base: str) -> tuple[str, str | None]:
    """The address without user and password, and these as the header sends them."""
    parts = urlsplit(base)
    if parts.username is None:
        return base, None
    account = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    bare = parts._replace(netloc=parts.netloc.rpartition("@")[2])
    return bare.geturl(), base64.b64encode(account.encode()).decode()


def _openai_name(name: str, provider: str | None) -> str | None:
    """The model's name without its provider, if the provider speaks OpenAI's protocol."""
    prefix, slash, rest = name.partition("/")
    if slash and prefix == PROVIDER:
        return rest or None
    if provider == PROVIDER:
        return name or None
    return name if provider is None and PLAIN_MODELS.fullmatch(name) else None
