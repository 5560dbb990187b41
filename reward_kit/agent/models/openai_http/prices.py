"""What a call costs, from LiteLLM's price table, which is read without importing LiteLLM."""

from __future__ import annotations

import functools
import importlib.util
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.models.openai_http.endpoint import PROVIDER

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Usage

_TABLE = "model_prices_and_context_window_backup.json"
_READ = frozenset({"input_cost_per_token", "output_cost_per_token", "cache_read_input_token_cost"})
_OF_OTHER_CALLS = ("_batches", "_flex", "_priority", "_per_image", "_per_query", "_per_session")
"""Ends of the names of prices that a plain chat completion never has to pay."""


class NotPlain(Exception):  # noqa: N818 - an answer to a question, no fault
    """The price depends on more than counts of tokens: LiteLLM has to work it out."""


def price(usage: Usage, names: tuple[str, ...]) -> float | None:
    """US dollars for a call of the first of ``names`` (of models) that has a price; None if none has, or if
    the answer did not tell its tokens.

    Raises ``NotPlain`` where the table knows tiers or kinds of tokens of their own.
    """
    if not usage.input_tokens and not usage.output_tokens:
        return None
    for name in names:
        entry = _entry(name)
        if entry is None:
            continue
        if not entry.keys() >= {"input_cost_per_token", "output_cost_per_token"} or _is_tiered(entry):
            raise NotPlain
        cached = entry.get("cache_read_input_token_cost")
        if cached is None and usage.cached_tokens:
            raise NotPlain
        fresh = usage.input_tokens - usage.cached_tokens
        prompt = fresh * entry["input_cost_per_token"] + usage.cached_tokens * (cached or 0.0)
        return float(prompt + usage.output_tokens * entry["output_cost_per_token"])
    return None


def has_price(name: str) -> bool:
    """Whether a model has a price under this name."""
    return _entry(name) is not None


def _is_tiered(entry: dict[str, Any]) -> bool:
    return any(
        "cost" in name and name not in _READ and not name.endswith(_OF_OTHER_CALLS) and value
        for name, value in entry.items()
    )


def _entry(name: str) -> dict[str, Any] | None:
    loaded = getattr(sys.modules.get("litellm"), "model_cost", None)
    table = load_prices() if loaded is None else loaded  # where it is loaded, prices may have been added
    for key in (name, f"{PROVIDER}/{name}"):
        entry = table.get(key)
        if isinstance(entry, dict) and entry.get("litellm_provider") == PROVIDER:
            return entry
    return None


@functools.cache
def load_prices() -> dict[str, Any]:
    """LiteLLM's table as it came with the installed release; empty where it has none in that place."""
    spec = importlib.util.find_spec("litellm")
    if spec is None or spec.origin is None:
        return {}
    file = Path(spec.origin).with_name(_TABLE)
    try:
        entries = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return {
        name: entry
        for name, entry in entries.items()
        if isinstance(entry, dict) and entry.get("litellm_provider") == PROVIDER
    }
