"""Models behind LiteLLM: one call, retried where that may help, with what it used and cost.

The only module that imports LiteLLM, and only when a model is checked or called: importing it takes seconds.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import logging
import os
import sys
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.redaction import secrets_in
from reward_kit.agent.models.addresses import base_from_environment, check_address, needs_no_key
from reward_kit.agent.models.calls import BoundModel, ask
from reward_kit.agent.models.errors import headers_of, model_error
from reward_kit.agent.models.litellm_answer import read_answer, without_secrets
from reward_kit.agent.models.own_fields import sent_messages
from reward_kit.errors import ModelError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from reward_kit.agent.base.types import Completion, Message, Model
    from reward_kit.agent.models.calls import Caller
    from reward_kit.agent.models.limiter import Limiter, Limiters


LONGEST_TIMEOUT = 1e7
"""Seconds, as good as none: without a limit LiteLLM takes one of its own, and it cannot do with infinity."""


class LiteLLMModel:
    """A model that LiteLLM can reach: ``openai/gpt-4o``, or ``gpt-4o`` with ``provider="openai"``.

    ``timeout`` is in seconds for one attempt; a fault that may pass is raised after ``retries`` further
    attempts. Between attempts it waits a random part of ``backoff`` * 2^n seconds, on top of what the
    provider asks for. ``model_args`` are further arguments of ``litellm.acompletion``. A temperature, seed or
    limit on parallel tool calls that the provider does not know is left out. With ``limiters``, calls go
    through the limiter of the provider.
    """

    def __init__(
        self,
        name: str,
        *,
        provider: str | None = None,
        temperature: float | None = None,
        model_args: dict[str, Any] | None = None,
        timeout: float = 600.0,
        retries: int = 3,
        backoff: float = 1.0,
        limiters: Limiters | None = None,
    ) -> None:
        self.name = name
        self.provider = provider
        self.temperature = temperature
        self.model_args = dict(model_args or {})
        self.timeout = timeout
        self.retries = retries
        self.backoff = backoff
        self._limiters = limiters

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        parallel_tool_calls: bool = True,
        caller: Caller | None = None,
    ) -> Completion:
        """Ask the model; raises ``ModelError`` or one of its subclasses where it does not answer."""
        request = self._request(messages, tools, seed, parallel_tool_calls)
        limiter = self._limiter(request)
        return await ask(
            lambda: self._attempt(request, limiter),
            retries=self.retries,
            backoff=self.backoff,
            limiter=limiter,
            size=_size(request) if limiter is not None else 0,
            caller=caller,
        )

    def for_rollout(self, caller: Caller) -> Model:
        """The model as one rollout asks it."""
        return BoundModel(self, caller)

    def identity(self) -> dict[str, Any]:
        """What decides its answers besides the conversation; secrets in ``model_args`` are still in it."""
        name, provider = resolve(self.name, self.provider)
        prefix = provider.upper()
        return {
            "model": name,
            "provider": provider,
            "api_base": base_from_environment(provider) or os.environ.get(f"{prefix}_API_BASE"),
            "api_version": os.environ.get(f"{prefix}_API_VERSION"),
            "temperature": self.temperature,
            "model_args": self.model_args,
        }

    async def close(self) -> None:
        """Close the connections that LiteLLM keeps for this event loop."""
        close = getattr(import_litellm(), "close_litellm_async_clients", None)
        if close is not None:
            await close()

    def _request(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        seed: int | None,
        parallel_tool_calls: bool,
    ) -> dict[str, Any]:
        name, provider = resolve(self.name, self.provider)
        request: dict[str, Any] = {
            "model": name,
            "custom_llm_provider": provider,
            "messages": sent_messages(messages, provider),
            "timeout": min(self.timeout, LONGEST_TIMEOUT),
            "num_retries": 0,
            "max_retries": 0,
            "drop_params": True,
            "temperature": self.temperature,
            "seed": seed,
            **self.model_args,
        }
        if tools:
            self._check_tools(name, provider)
            request["tools"] = copy.deepcopy(tools)  # LiteLLM rewrites them, too, and all rollouts share them
            if not parallel_tool_calls:
                request["parallel_tool_calls"] = False
        if "api_key" not in request and needs_no_key(provider, request.get("api_base")):
            request["api_key"] = "none"
        return {key: value for key, value in request.items() if value is not None}

    def _limiter(self, request: dict[str, Any]) -> Limiter | None:
        if self._limiters is None:
            return None
        provider = request["custom_llm_provider"]
        address = request.get("api_base") or request.get("base_url") or base_from_environment(provider)
        return self._limiters.of(provider, address)

    def _check_tools(self, name: str, provider: str) -> None:
        """LiteLLM would leave the tools out without a word, or paste them into the prompt."""
        if "tools" in _supported_parameters(name, provider) or "tools" in self.model_args.get(
            "allowed_openai_params", ()
        ):
            return
        raise ModelSetupError(
            "LiteLLM knows of no tool calling there",
            place=f"model {name} ({provider})",
            remedy="Take another model or agent; ollama's models are named ollama_chat/... for this.",
        )

    async def _attempt(self, request: dict[str, Any], limiter: Limiter | None) -> Completion | ModelError:
        """One call; a fault is returned, because whether to raise it is not decided here."""
        litellm = import_litellm()
        model, provider = request["model"], request["custom_llm_provider"]
        workarounds = dict(_workarounds)
        try:
            # LiteLLM's own limit is for silence; a server that drips its answer must end as well.
            answer = await asyncio.wait_for(litellm.acompletion(**request, **workarounds), self.timeout + 1.0)
            if limiter is not None:
                limiter.read_headers(response_headers(answer))
            return without_secrets(read_answer(answer, model, provider), secrets_in(self.model_args))
        except Exception as error:  # noqa: BLE001 - a malformed answer makes LiteLLM raise anything
            if "No module named 'mcp'" in str(error) and not workarounds:
                # Some releases import an optional package for every call with tools, unless told otherwise.
                _workarounds["_skip_mcp_handler"] = True
                return await self._attempt(request, limiter)
            if limiter is not None:
                limiter.read_headers(headers_of(error))
            address = request.get("api_base") or base_from_environment(provider)
            fault = model_error(
                error,
                model=model,
                provider=provider,
                address=address,
                timeout=self.timeout,
                secrets=secrets_in(self.model_args),
            )
            fault.__cause__ = error
            return fault


_workarounds: dict[str, Any] = {}


def response_headers(answer: Any) -> dict[str, Any]:
    """The provider's own headers in an answer of LiteLLM, by their names in lower case.

    ``_hidden_params`` is private, and the only place that holds them (LiteLLM 1.75 to 1.106).
    """
    hidden = getattr(answer, "_hidden_params", None) or {}
    headers = hidden.get("additional_headers") or {}
    return {str(name).lower().removeprefix("llm_provider-"): value for name, value in headers.items()}


def _size(request: dict[str, Any]) -> int:
    """Characters of what is counted in tokens."""
    return len(json.dumps([request["messages"], request.get("tools")], default=str))


def check_model(name: str, provider: str | None = None, *, model_args: dict[str, Any] | None = None) -> None:
    """Find out without any network whether a model can be called at all.

    Raises ``ModelSetupError`` for an unknown provider, a name without a provider, arguments that the provider
    does not know, a server's address without http://, and a key that is not set: the message names its
    environment variable.
    """
    name, provider = resolve(name, provider)
    model_args = model_args or {}
    place = f"model {name} ({provider})"
    litellm = import_litellm()
    unknown = _unknown_arguments(litellm, name, provider, model_args)
    if unknown:
        raise ModelSetupError(f"the provider does not know {', '.join(unknown)}", place=place)
    check_address(provider, model_args.get("api_base") or model_args.get("base_url"), place=place)
    if "api_key" in model_args or needs_no_key(provider, model_args.get("api_base")):
        return
    missing = [key for key in _missing_variables(litellm, name, provider) if key.endswith("_API_KEY")]
    if missing:
        keys = " or ".join(missing)
        raise ModelSetupError(
            f"{keys} is not set", place=place, remedy="Set it in the environment or in a .env file."
        )


@functools.lru_cache(maxsize=64)
def resolve(name: str, provider: str | None) -> tuple[str, str]:
    """A model's name and provider as LiteLLM calls them; ``ModelSetupError`` where they cannot be told."""
    litellm = import_litellm()
    known = {getattr(entry, "value", entry) for entry in litellm.provider_list}
    if provider is not None and provider not in known:
        raise ModelSetupError(f"unknown provider {provider!r}", remedy=_closest(provider, known))
    if not name.strip("/ "):
        raise ModelSetupError(
            "no model is named", remedy="Name one as provider/model, such as openai/gpt-4o-mini."
        )
    try:
        found, found_provider, *_ = litellm.get_llm_provider(name, custom_llm_provider=provider)
    except Exception as error:
        prefix = name.partition("/")[0]
        hint = _closest(prefix, known) if "/" in name else ""
        raise ModelSetupError(
            f"unknown model {name!r}",
            remedy=hint or f"Name its provider as well: provider/{name}, such as openai/{name}.",
        ) from error
    if not found:
        raise ModelSetupError(
            f"{name!r} names a provider without a model", remedy=f"Write {name.rstrip('/')}/model."
        )
    return str(found), str(found_provider)


@functools.cache
def import_litellm() -> ModuleType:
    """LiteLLM, which prints nothing and reads no price list from the network and no ``.env`` file.

    Its loggers are silenced unless the program has imported it before.
    """
    if "litellm" in sys.modules:
        return sys.modules["litellm"]
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)  # read while it is imported, and removed again
    try:
        import litellm
    finally:
        for name in added:
            os.environ.pop(name, None)
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    # Some releases serialise their own answers in a way that pydantic warns about at every call.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", module="pydantic")
    return litellm


@functools.lru_cache(maxsize=64)
def _supported_parameters(name: str, provider: str) -> frozenset[str]:
    return frozenset(import_litellm().get_supported_openai_params(name, custom_llm_provider=provider) or ())


def _unknown_arguments(
    litellm: ModuleType, name: str, provider: str, model_args: dict[str, Any]
) -> list[str]:
    """Arguments of OpenAI's format that LiteLLM would drop for this provider; others it hands on."""
    allowed = _supported_parameters(name, provider) | set(model_args.get("allowed_openai_params", ()))
    always = {"timeout", "api_base", "api_key", "base_url", "extra_headers", "metadata"}
    known = set(litellm.OPENAI_CHAT_COMPLETION_PARAMS)
    return sorted(key for key in model_args if key in known and key not in allowed | always)


def _missing_variables(litellm: ModuleType, name: str, provider: str) -> list[str]:
    if provider == "azure" and (os.environ.get("AZURE_AD_TOKEN") or os.environ.get("AZURE_CLIENT_ID")):
        return []
    with _blank_keys_unset():
        return list(litellm.validate_environment(f"{provider}/{name}").get("missing_keys") or ())


@contextmanager
def _blank_keys_unset() -> Iterator[None]:
    """LiteLLM takes ``OPENAI_API_KEY=`` for a key; each call would then fail."""
    blank = {
        name: value for name, value in os.environ.items() if name.endswith("_API_KEY") and not value.strip()
    }
    for name in blank:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(blank)


def _closest(provider: str, known: set[str]) -> str:
    import difflib

    close = difflib.get_close_matches(provider, known, n=3)
    return f"Did you mean {' or '.join(close)}?" if close else "See LiteLLM's list of providers."
