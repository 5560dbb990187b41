"""The LiteLLM library: its import, its answers, its prices, and all private parts of it that are used.

Importing it takes seconds, so nothing imports it before a model is checked or called.
"""

from __future__ import annotations

import functools
import gc
import json
import logging
import os
import re
import sys
import warnings
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.metadata import distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.redaction import label
from reward_kit.agent.base.types import MOST_COUNTED, Completion, Message, Tokens, Usage
from reward_kit.agent.base.worker_thread import once
from reward_kit.agent.models.answer_parts import StatedError, tokens_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from types import ModuleType

_quiet: ContextVar[bool] = ContextVar("litellm_is_quiet", default=False)


@once
def import_litellm() -> ModuleType:
    """LiteLLM, which prints nothing and reads no price list from the network and no ``.env`` file.

    If the program has imported it before, it stays as it is. Otherwise its loggers say nothing during calls
    that ``quiet`` surrounds. Other loggers keep the level and the filters that the program gave them.
    """
    import httpx

    # a redirect would send the conversation and the key to another address; LiteLLM's clients follow each
    redirects: Any = httpx.Response.has_redirect_location
    shown = property(lambda answer: not _quiet.get() and redirects.fget(answer))
    httpx.Response.has_redirect_location = shown  # type: ignore[method-assign,assignment]
    if "litellm" in sys.modules:
        return sys.modules["litellm"]
    settings = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
    added = {name: value for name, value in settings.items() if name not in os.environ}
    os.environ.update(added)  # read while it is imported, and removed again
    known = [logging.getLogger(), *map(logging.getLogger, tuple(logging.root.manager.loggerDict))]
    before = [(logger, logger.level, list(logger.filters)) for logger in known]
    collects = gc.isenabled()
    gc.disable()  # it makes 300,000 objects, none of them garbage
    try:
        import litellm
    finally:
        if collects:
            gc.enable()
        for name in added:
            os.environ.pop(name, None)
        for logger, level, filters in before:
            logger.setLevel(level)
            logger.filters[:] = filters
    litellm.suppress_debug_info = True
    litellm.telemetry = False
    for name in ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy"):
        logging.getLogger(name).addFilter(lambda _: not _quiet.get())
    # Some releases serialise their own answers in a way that pydantic warns about at every call.
    warnings.filterwarnings("ignore", message="Pydantic serializer warnings", module="pydantic")
    return litellm


@contextmanager
def quiet() -> Iterator[None]:
    """Silence LiteLLM's loggers in this block, for this task alone."""
    token = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(token)


# -- requests

OWN_FIELD = "provider_specific_fields"
"""Holds signatures of thoughts, refusals, and every field of an answer that LiteLLM does not know."""
_READ_AGAIN = frozenset(
    {
        *("anthropic", "bedrock", "bedrock_converse", "deepseek"),
        *("gemini", "moonshot", "vertex_ai", "vertex_ai_beta"),
    }
)
"""Providers to which LiteLLM sends it in another form; some of the others refuse it."""
_REFUSED = {
    "cerebras": ("reasoning_content",),  # HTTP 400: inference-docs.cerebras.ai/capabilities/reasoning
    "groq": ("reasoning_content", "executed_tools"),  # HTTP 400: console.groq.com/docs/api-reference
    # HTTP 422; thoughts are parts of the content: docs.mistral.ai/studio-api/conversations/reasoning
    "mistral": ("reasoning_content", "reasoning", "refusal"),
}
"""Fields of an answer that a provider does not take back. All others get back what they have sent."""


CALL_SETTINGS = {"num_retries": 0, "max_retries": 0, "drop_params": True, "_skip_mcp_handler": True}
"""Arguments of each call; without the last, which is private, tools need a package that may not be there."""


_USER_FIRST = frozenset({"anthropic", "azure_ai", "bedrock", "bedrock_converse", "vertex_ai"})
"""Providers with models that refuse a conversation in which nobody, or the assistant, speaks first."""
BEGINNING = "(The conversation begins.)"


def sent_messages(
    messages: Iterable[Message], provider: str | None, *, direct: bool = False, is_first: bool = True
) -> list[Message]:
    """Copies of ``messages``, since LiteLLM rewrites some, for ``provider``; if ``direct``, without nulls.

    ``is_first``: the conversation begins with them.
    """
    kept = provider in _READ_AGAIN and not direct
    left_out = {*_REFUSED.get(provider or "", ()), *(() if kept else (OWN_FIELD,))}
    sent = [
        {name: it for name, it in one.items() if name not in left_out and not (direct and it is None)}
        for one in messages
    ]
    if provider == "mistral":
        for one, given in zip(sent, messages, strict=True):
            if thought := given.get("reasoning_content"):
                one["content"] = [
                    {"type": "thinking", "thinking": [{"type": "text", "text": thought}]},
                    *([{"type": "text", "text": one["content"]}] if one.get("content") else []),
                ]
    if is_first and provider in _USER_FIRST:
        first = next((number for number, one in enumerate(sent) if one["role"] != "system"), len(sent))
        if [one["role"] for one in sent[first : first + 1]] in ([], ["assistant"]):
            sent.insert(first, {"role": "user", "content": BEGINNING})
    return sent


def know_model(name: str, provider: str) -> None:
    """Have LiteLLM know a model of Ollama, which costs nothing: else it asks the server twice a call."""
    if provider in ("ollama", "ollama_chat"):
        free = {"input_cost_per_token": 0.0, "output_cost_per_token": 0.0}
        entry = {"litellm_provider": provider, "mode": "chat", **free}
        import_litellm().model_cost.setdefault(f"{provider}/{name}", entry)


def note_address(called: list[str], details: dict[str, Any]) -> None:
    """Put the URL into ``called`` that LiteLLM is about to call; the callback ``logger_fn`` of a call."""
    url = details.get("additional_args", {}).get("api_base")
    if url:  # OpenAI's client alone gives its base, and not as text
        called[:] = [url if isinstance(url, str) else f"{str(url).rstrip('/')}/chat/completions"]


# -- answers

_RETURNED_FIELDS = (
    *("reasoning", "reasoning_content", "reasoning_details", "reasoning_items", "thinking_blocks"),
    "refusal",
)
"""Fields of an answer that some providers want back with the history."""
ABSENT: tuple[Any, ...] = (None, [], {})
"""Values that mean nothing; an empty text does, as DeepSeek wants empty reasoning back."""


def response_headers(answer: Any) -> dict[str, Any]:
    """The provider's own headers in an answer of LiteLLM, by their names in lower case.

    ``_hidden_params`` is private, and the only place that holds them (LiteLLM 1.75 to 1.106).
    """
    hidden = getattr(answer, "_hidden_params", None) or {}
    headers = hidden.get("additional_headers") or {}
    return {str(name).lower().removeprefix("llm_provider-"): value for name, value in headers.items()}


def read_answer(
    answer: Any,
    model: str,
    provider: str,
    secrets: frozenset[str] = frozenset(),
    prices: dict[str, float] | None = None,
) -> Completion:
    """The completion in a LiteLLM answer; raises ``ValueError`` without choices, else ``StatedError``."""
    if not answer.choices:
        raise ValueError("it has no choices")
    choice = answer.choices[0]
    if error := (getattr(choice, OWN_FIELD, None) or {}).get("error"):
        raise StatedError(error)
    return Completion(
        message=_message(choice.message),
        usage=_usage(answer, model, provider, prices),
        finish_reason=label(str(choice.finish_reason or "stop"), secrets),
        model=label(str(answer.model or model), secrets),
        tokens=_tokens_of(answer, choice),
    )


def _tokens_of(answer: Any, choice: Any) -> Tokens | None:
    fields = getattr(choice, OWN_FIELD, None) or {}
    if not fields.get("token_ids"):
        return None
    logprobs = choice.logprobs.model_dump() if hasattr(choice.logprobs, "model_dump") else choice.logprobs
    given = {"token_ids": fields["token_ids"], "logprobs": logprobs}
    return tokens_in(getattr(answer, "prompt_token_ids", None), given)


def usage_by_litellm(stated: dict[str, Any], answered_by: str, model: str, provider: str) -> Usage:
    """The usage that an answer's JSON has ``stated``, with LiteLLM's price."""
    litellm = import_litellm()
    return _usage(litellm.ModelResponse(model=answered_by, usage=litellm.Usage(**stated)), model, provider)


def _message(message: Any) -> Message:
    kept: Message = {"role": "assistant", "content": message.content}
    if message.tool_calls:
        kept["tool_calls"] = [
            call.model_dump(exclude_none=True, exclude={"index"}) for call in message.tool_calls
        ]
    fields = getattr(message, OWN_FIELD, None) or {}
    given = {name: getattr(message, name, fields.get(name)) for name in _RETURNED_FIELDS}
    if given["reasoning"]:  # under the name that the provider gave it; LiteLLM has copied it
        del given["reasoning_content"]
    kept |= {name: value for name, value in given.items() if value not in ABSENT}
    if fields := {key: value for key, value in fields.items() if value and key not in kept}:
        kept[OWN_FIELD] = fields
    return kept


def _usage(answer: Any, model: str, provider: str, prices: dict[str, float] | None = None) -> Usage:
    usage = getattr(answer, "usage", None)
    counts = usage.model_dump() if usage is not None else {}
    used, stated = usage_of(counts), stated_cost(counts)
    if stated is not None:
        used.cost = stated
        return used
    litellm = import_litellm()
    try:
        named = {"model": model, "custom_llm_provider": provider}
        cost = _cost(used, prices) if prices else float(litellm.completion_cost(answer, **named))
    except Exception:  # noqa: BLE001 - LiteLLM raises a bare Exception for a model without a price
        cost = -1.0
    # for some names that its table lacks LiteLLM says 0
    names = {key for name in (answer.model, model) for key in (name, f"{provider}/{name}")}
    is_known = prices or not names.isdisjoint(litellm.model_cost)
    is_priced = 0 < cost <= MOST_COUNTED or (cost == 0 and is_known)
    if is_priced and (used.input_tokens or used.output_tokens):  # without tokens the cost is unknown
        used.cost = cost
    else:
        used.unpriced_calls = 1
    return used


def stated_cost(usage: Mapping[str, Any]) -> float | None:
    """US dollars that the provider states for a call, as OpenRouter does; None if it states none."""
    costs = [usage.get("cost")]
    details = usage.get("cost_details")
    if usage.get("is_byok") and isinstance(details, dict):  # the provider behind it bills the key's owner
        costs.append(details.get("upstream_inference_cost"))
    found = [cost for cost in costs if isinstance(cost, int | float) and 0 <= cost <= MOST_COUNTED]
    return float(sum(found)) if found else None


def usage_of(stated: Mapping[str, Any]) -> Usage:
    """The tokens of a call; DeepSeek, Together and SGLang state some of them beside the details."""
    details = (stated.get(f"{part}_tokens_details") for part in ("prompt", "completion"))
    prompt, completion = (one if isinstance(one, dict) else {} for one in details)
    cached = _count(prompt, "cached_tokens") or _count(stated, "prompt_cache_hit_tokens", "cached_tokens")
    input_tokens = _count(stated, "prompt_tokens")
    return Usage(
        calls=1,
        input_tokens=input_tokens,
        cached_tokens=min(cached, input_tokens),
        output_tokens=_count(stated, "completion_tokens"),
        reasoning_tokens=_count(completion, "reasoning_tokens") or _count(stated, "reasoning_tokens"),
    )


def _count(counts: Mapping[str, Any], *names: str) -> int:
    """The first count of these names that is above 0, else 0."""
    for name in names:
        if (count := counts.get(name)) and isinstance(count, (int, float)) and 0 < count <= MOST_COUNTED:
            return int(count)
    return 0


# -- prompt caches

MARK = {"cache_control": {"type": "ephemeral"}}


def mark_for_cache(request: dict[str, Any], name: str, provider: str) -> None:
    """Mark the parts of a request that the next one repeats, for models that cache only what is marked.

    Four marks are allowed. Claude gets three: the tools, the system prompt and the last message. Amazon Nova,
    and Claude behind OpenRouter, refuse them at tools and results: there the user's last message has one.
    """
    name = name.lower()
    if not _takes_marks(name, provider):
        return
    anywhere = "claude" in name and provider != "openrouter"
    messages = request["messages"]
    markable = messages if anywhere else [one for one in messages if one["role"] == "user"]
    for message in (messages[0], *markable[-1:]):
        content = message.get("content") or ""
        text = content if isinstance(content, str) else content[-1].get("text", "an image")
        if not text.strip():  # an empty block with a mark is refused
            continue
        if isinstance(content, str) or message["role"] == "tool":
            message |= MARK
        else:
            message["content"] = [*content[:-1], content[-1] | MARK]
    if anywhere and request.get("tools"):
        request["tools"][-1] |= MARK


@functools.lru_cache(maxsize=64)
def _takes_marks(name: str, provider: str) -> bool:
    """True if the model takes marks there; Bedrock refuses them for models that cannot cache."""
    if provider == "bedrock" and ("claude" in name or "nova" in name):
        return bool(import_litellm().utils.supports_prompt_caching(name, custom_llm_provider=provider))
    return "claude" in name and provider in {"anthropic", "azure_ai", "openrouter", "vertex_ai"}


# -- prices of OpenAI's models, without importing LiteLLM

BASE_PRICES = frozenset({"input_cost_per_token", "output_cost_per_token"})
PRICES = BASE_PRICES | {"cache_read_input_token_cost"}
"""Prices that an evaluation may give; LiteLLM would keep them for all models of the name."""
_OF_OTHER_CALLS = ("_batches", "_flex", "_priority", "_per_image", "_per_query", "_per_session")
"""Ends of the names of prices that a plain chat completion never has to pay."""


class NotPlain(Exception):  # noqa: N818 - an answer to a question, no fault
    """The price depends on more than counts of tokens: LiteLLM has to work it out."""


def openai_price(usage: Usage, names: tuple[str, ...]) -> float | None:
    """US dollars for a call of the first of ``names`` (of models) that has a price; None if none has, or if
    the answer did not state its tokens.

    Raises ``NotPlain`` if the table has tiers, or separate prices for kinds of tokens.
    """
    entry = next(filter(None, map(_entry, names)), None)
    if entry is None or not usage.input_tokens:
        return None
    if not entry.keys() >= BASE_PRICES or any(
        "cost" in name and name not in PRICES and not name.endswith(_OF_OTHER_CALLS) and value
        for name, value in entry.items()
    ):
        raise NotPlain
    if usage.cached_tokens and entry.get("cache_read_input_token_cost") is None:
        raise NotPlain
    return _cost(usage, entry)


def _cost(usage: Usage, prices: Mapping[str, float]) -> float:
    full, cached = prices["input_cost_per_token"], prices.get("cache_read_input_token_cost")
    prompt = usage.input_tokens * full
    if cached is not None:
        prompt -= usage.cached_tokens * (full - cached)
    return float(prompt + usage.output_tokens * prices["output_cost_per_token"])


def _entry(name: str) -> dict[str, Any] | None:
    loaded = getattr(sys.modules.get("litellm"), "model_cost", None)
    table = load_prices() if loaded is None else loaded  # once LiteLLM is loaded, prices may have been added
    trained = re.sub(r"^(ft:[^:]*):.*", r"\1", name)  # all that were trained further from one model
    for key in (name, f"openai/{name}", trained):
        entry = table.get(key)
        if isinstance(entry, dict) and entry.get("litellm_provider") == "openai":
            return entry
    return None


@functools.cache
def load_prices() -> dict[str, Any]:
    """LiteLLM's table as it came with the installed release; empty if it is not there."""
    file = distribution("litellm").locate_file("litellm/model_prices_and_context_window_backup.json")
    try:
        entries: dict[str, Any] = json.loads(Path(str(file)).read_bytes())
    except (OSError, ValueError):
        return {}
    return entries
