"""Whether checking a value of a type runs Python that a bundle brought along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_KINDS = frozenset(
    {
        *("any", "none", "bool", "int", "float", "decimal", "str", "bytes", "date", "time", "datetime"),
        *("timedelta", "uuid", "url", "multi-host-url", "literal", "enum", "nullable", "union"),
        *("tagged-union", "list", "set", "frozenset", "tuple", "dict", "typed-dict", "typed-dict-field"),
        *("model", "model-fields", "model-field", "dataclass", "dataclass-args", "dataclass-field"),
        *("default", "definitions", "definition-ref", "json-or-python", "lax-or-strict", "is-instance"),
    }
)
"""Kinds of pydantic's schemas that are checked without any Python code."""
_HOOKS = ("custom_init", "post_init", "default_factory", "missing")
"""Where such a kind names Python code of its class all the same."""
NAMED = ("fields", "choices")
"""Parts that hold schemas by names of the bundle's own."""
UNREAD = frozenset({"serialization", "metadata", "config", "cls", "expected", "default"})
"""Parts in which there is no schema."""


def runs_own_code(schema: Any, *, harmless: type) -> bool:
    """Whether a schema that pydantic made of types calls functions other than the ``harmless`` ones."""
    if isinstance(schema, list | tuple):
        return any(runs_own_code(part, harmless=harmless) for part in schema)
    if not isinstance(schema, Mapping):
        return False
    kind = schema.get("type")
    if kind == "function-after" and isinstance(schema["function"]["function"], harmless):
        return False
    if isinstance(kind, str) and (kind not in _KINDS or _has_hook(schema)):
        return True
    parts = [part for name, part in schema.items() if name not in UNREAD and name not in NAMED]
    for name in NAMED:
        named = schema.get(name)
        parts += named.values() if isinstance(named, Mapping) else [named]
    return runs_own_code(parts, harmless=harmless)


def _has_hook(schema: Mapping[str, Any]) -> bool:
    hooks = [schema.get(name) for name in _HOOKS]
    if any(hook and getattr(hook, "__module__", None) != "builtins" for hook in hooks):
        return True
    config = schema.get("config") or {}
    return callable(schema.get("discriminator")) or config.get("regex_engine") == "python-re"
