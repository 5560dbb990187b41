"""Models behind LiteLLM, and the choice between it and the direct client."""

from __future__ import annotations

import asyncio
import copy
import difflib
import functools
import json
import os
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from reward_kit.agent.models.calls import RemoteModel, Request
from reward_kit.agent.models.litellm_library import (
    BASE_PRICES,
    CALL_SETTINGS,
    PRICES,
    import_litellm,
    know_model,
    mark_for_cache,
    note_address,
    quiet,
    read_answer,
    response_headers,
    sent_messages,
)
from reward_kit.agent.models.providers import (
    OPENAI,
    addresses,
    base_from_environment,
    bypass_proxies,
    check_setup,
    find_endpoint,
    needs_no_key,
    without_key,
)
from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Completion, Message
    from reward_kit.agent.models.calls import Limiters
    from reward_kit.agent.models.limiter import Limiter

NOT_TO_SET = ("model", "messages", "tools", "stream", "input_cost_per_second", "output_cost_per_second")
"""Arguments of LiteLLM that are others' to set; it would keep the prices for all models of the name."""
_SPELLED = {"authorization": "Authorization", "content-type": "Content-Type"}  # as clients spell them
_SPELLED |= {name: name for name in ("api-key", "x-api-key", "x-goog-api-key")}
LONGEST_TIMEOUT = 1e7
"""Seconds; as good as no limit, for which LiteLLM would take a default. It does not take infinity."""


def remote_model(
    name: str,
    provider: str | None = None,
    *,
    client: str,
    model_args: dict[str, Any] | None = None,
    limiters: Limiters | None = None,
    prompt_cache: bool = False,
    **more: Any,
) -> RemoteModel:
    """A model that is asked over HTTP: directly if ``client`` allows that and it is possible, or by LiteLLM.

    ``more`` are further arguments of ``RemoteModel``. Raises ``ModelSetupError`` for a model that cannot be
    called.
    """
    if limiters is not None:
        limiters.used = True
    model_args = model_args or {}
    given = model_args.get("extra_headers") or {}
    own = {name for name in NOT_TO_SET if model_args.get(name) not in (None, False)}
    if own or not isinstance(given, dict):
        fault = f"{min(own)!r} is no argument to set" if own else "'extra_headers' is no JSON object"
        raise ModelSetupError(fault, place=f"model {name}", remedy="Change --model-arg or --user-model-arg.")
    if prices := PRICES & model_args.keys():
        try:
            model_args = model_args | {one: float(model_args[one]) for one in BASE_PRICES | prices}
        except (KeyError, TypeError, ValueError):
            names = " and ".join(sorted(BASE_PRICES))
            raise ModelSetupError(f"{names} are not both numbers", place=f"model {name}") from None
    if given:  # one name in two spellings is sent twice
        headers = {
            _SPELLED.get(key.lower(), key): str(value) for key, value in given.items() if value is not None
        }
        model_args = {**model_args, "extra_headers": headers}
    if model_args.get("return_token_ids"):  # for training, which needs these as well
        model_args = {"logprobs": True, **model_args}
    more.update(model_args=model_args, limiters=limiters)
    endpoint = find_endpoint(name, provider, model_args) if client == "direct" else None
    made: RemoteModel
    if endpoint is not None:
        from reward_kit.agent.models.openai_http import OpenAIModel

        made = OpenAIModel(name, endpoint, **more)
    else:
        check_model(name, provider, model_args=model_args)
        made = LiteLLMModel(name, provider=provider, prompt_cache=prompt_cache, **more)
        know_model(*resolve(name, provider))
    called = OPENAI if endpoint is not None else resolve(name, provider)[1]
    made.note = bypass_proxies(addresses(called, made.model_args))
    return made


@dataclass(eq=False, repr=False)
class LiteLLMModel(RemoteModel):
    """A model that LiteLLM can reach: ``openai/gpt-4o``, or ``gpt-4o`` with ``provider="openai"``.

    Further options are those of ``RemoteModel``: ``temperature``, ``timeout`` in seconds for one attempt,
    ``retries``, ``backoff``, and ``model_args``, further arguments of ``litellm.acompletion``. A temperature,
    seed or limit on parallel tool calls that the provider does not know is left out. ``prompt_cache`` marks
    what requests repeat, for providers that cache only what is marked.
    """

    _: KW_ONLY
    provider: str | None = None
    prompt_cache: bool = False

    async def close(self) -> None:
        """Close the connections that LiteLLM keeps for this event loop."""
        close = getattr(import_litellm(), "close_litellm_async_clients", None)
        if close is not None:
            await close()
            import_litellm().in_memory_llm_clients_cache.flush_cache()  # else they were used again

    def _resolved(self) -> tuple[str, str]:
        return resolve(self.name, self.provider)

    def _request(self, messages: list[Message], options: dict[str, Any], _sent: dict[Any, Any]) -> Request:
        name, provider = self._resolved()
        request: dict[str, Any] = {
            "model": name,
            "custom_llm_provider": provider,
            "messages": sent_messages(messages, provider),
            "timeout": min(self.timeout, LONGEST_TIMEOUT),
            **CALL_SETTINGS,
            "temperature": self.temperature,
            **{name: value for name, value in self.model_args.items() if name not in PRICES},
            **copy.deepcopy(options),  # LiteLLM rewrites tools, too, and all rollouts share them
        }
        if "tools" in options and "tools" not in _allowed(name, provider, self.model_args):
            # it would drop them, or paste them into the prompt
            raise ModelSetupError(
                "LiteLLM knows of no tool calling there",
                place=f"model {name} ({provider})",
                remedy="Take another model or agent; ollama's models are named ollama_chat/... for this.",
            )
        if "api_key" not in request and needs_no_key(provider, request.get("api_base")):
            request["api_key"] = "none"
        request = {key: value for key, value in request.items() if value is not None}
        address = request.get("api_base") or request.get("base_url") or base_from_environment(provider)
        text = json.dumps([request["messages"], options.get("tools")], default=str)
        if self.prompt_cache and '"cache_control":' not in text:  # a row may have marks of its own
            mark_for_cache(request, name, provider)
        return Request(name, provider, address, len(text), request, [])

    async def _send(self, request: Request, limiter: Limiter | None) -> Completion:
        with quiet():
            note = partial(note_address, request.called)
            asked = import_litellm().acompletion(**request.body, logger_fn=note)
            # LiteLLM's own limit is for silence; a server that drips its answer must end as well
            answer = await asyncio.wait_for(asked, self.timeout + 1.0)
            if limiter is not None:
                limiter.read_headers(response_headers(answer))
            prices = {name: self.model_args[name] for name in PRICES & self.model_args.keys()}
            return read_answer(answer, request.model, request.provider, self._secrets, prices)


def check_model(name: str, provider: str | None = None, *, model_args: dict[str, Any] | None = None) -> None:
    """Find out without any network whether a model can be called at all.

    Raises ``ModelSetupError`` for an unknown provider, a name without a provider, arguments that the provider
    does not know, a server's address without http://, and a key that is not set: the message names its
    environment variable.
    """
    name, provider = resolve(name, provider)
    model_args = model_args or {}
    place = f"model {name} ({provider})"
    allowed = _allowed(name, provider, model_args)
    allowed |= {"timeout", "api_base", "api_key", "api_version", "base_url", "extra_headers", "metadata"}
    # of OpenAI's arguments it drops those that the provider does not know; others it hands on
    unknown = set(import_litellm().OPENAI_CHAT_COMPLETION_PARAMS).intersection(model_args) - allowed
    if unknown:
        raise ModelSetupError(f"the provider does not know {', '.join(sorted(unknown))}", place=place)
    check_setup(provider, model_args, place=place)
    if "api_key" in model_args or needs_no_key(provider, model_args.get("api_base")):
        return
    missing = _missing_variables(name, provider)
    if missing:
        raise without_key(" or ".join(missing), place)


@functools.lru_cache(maxsize=64)
def resolve(name: str, provider: str | None) -> tuple[str, str]:
    """A model's name and provider as LiteLLM calls them; raises ``ModelSetupError`` if it cannot say."""
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
    except litellm.BadRequestError as error:
        prefix = name.partition("/")[0]
        hint = _closest(prefix, known) if "/" in name else ""
        own = "Pass a model of your own from Python: models={'agent': ...}."
        remedy = hint or f"Name its provider as well: provider/{name}, such as openai/{name}. {own}"
        raise ModelSetupError(f"unknown model {name!r}", remedy=remedy) from error
    if not found:
        raise ModelSetupError(
            f"{name!r} names a provider without a model", remedy=f"Write {name.rstrip('/')}/model."
        )
    return str(found), str(found_provider)


@functools.lru_cache(maxsize=64)
def _supported_parameters(name: str, provider: str) -> frozenset[str]:
    return frozenset(import_litellm().get_supported_openai_params(name, custom_llm_provider=provider) or ())


def _allowed(name: str, provider: str, model_args: dict[str, Any]) -> set[str]:
    return set(_supported_parameters(name, provider)).union(model_args.get("allowed_openai_params", ()))


def _missing_variables(name: str, provider: str) -> list[str]:
    """The keys that are not set; LiteLLM takes ``OPENAI_API_KEY=`` for one, and each call would then fail."""
    if provider == "azure" and (os.environ.get("AZURE_AD_TOKEN") or os.environ.get("AZURE_CLIENT_ID")):
        return []
    litellm = import_litellm()
    blank = {
        key: value for key, value in os.environ.items() if key.endswith("_API_KEY") and not value.strip()
    }
    for key in blank:
        del os.environ[key]
    try:
        # of other names that hold the key LiteLLM knows only here
        if litellm.get_llm_provider(name, custom_llm_provider=provider)[2]:
            return []
        missing = litellm.validate_environment(f"{provider}/{name}").get("missing_keys") or ()
        # for Azure it lists those that are set as well
        return [key for key in missing if key.endswith("_API_KEY") and key not in os.environ]
    finally:
        os.environ.update(blank)


def _closest(provider: str, known: set[str]) -> str:
    close = difflib.get_close_matches(provider, known, n=3)
    return f"Did you mean {' or '.join(close)}?" if close else "See LiteLLM's list of providers."
