"""The text that a model sees of a value that a tool returned."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, time
from enum import Enum
from itertools import islice
from typing import Any

MAX_CHARACTERS = 1_000_000
"""The longest content passed on whole: far above any context window, far below what would exhaust memory."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>$")
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False)
_KEYS = frozenset({str})
_PLAIN = frozenset({str, int, bool, type(None)})
"""Types of values that are JSON as they are."""


def content_of(value: Any) -> str:
    """Return a ``str`` as it is, anything else as JSON text (``None`` as ``null``), always valid Unicode.

    JSON keeps the letters of every script instead of escaping them. Text longer than ``MAX_CHARACTERS`` is
    cut, with a note.
    """
    text = value if isinstance(value, str) else _ENCODER.encode(json_value(value))
    if not text.isascii():
        # Half of a surrogate pair cannot be sent to a model or written to a file.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if len(text) > MAX_CHARACTERS:
        return f"{text[:MAX_CHARACTERS]}\n[cut: the first {MAX_CHARACTERS:,} of {len(text):,} characters]"
    return str(text)


def json_value(value: Any) -> Any:
    """The value as plain JSON data.

    Rows, dataclasses and pydantic models become objects, dates ISO 8601, bytes text (base64 if they are not
    UTF-8), NaN and infinities null, and anything else its ``str``. Raises ``RecursionError`` for a value that
    contains itself, and ``TypeError`` for one whose ``str`` is only its address in memory.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is dict and _PLAIN.issuperset(map(type, value.values())) and _KEYS.issuperset(map(type, value)):
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if hasattr(kind, "_asdict"):  # rows and named tuples
        return json_value(value._asdict())
    if kind is dict or isinstance(value, Mapping):
        return {_key(key): json_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    return _other_json_value(value)


def _other_json_value(value: Any) -> Any:
    """The JSON data of anything but plain scalars and containers."""
    if isinstance(value, Enum):
        return json_value(value.value)
    if isinstance(value, (str, int, float)):
        return json_value(next(base for base in (str, int, float) if isinstance(value, base))(value))
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _text_of(bytes(value))
    if isinstance(value, (set, frozenset)):
        # The order of a set differs from process to process.
        return sorted(map(json_value, value), key=lambda item: (type(item).__name__, str(item)))
    if hasattr(value, "model_dump"):
        return json_value(value.model_dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if not getattr(value, "returns_rows", True):  # the result of a statement that only wrote
        return {"rowcount": value.rowcount}
    if isinstance(value, Iterable):
        return [json_value(item) for item in islice(value, MAX_CHARACTERS)]  # some iterables are endless
    text = str(value)
    if _ADDRESS.search(text):
        kind = type(value).__name__
        raise TypeError(
            f"a value of type {kind} is not JSON and has no text form: return JSON values, "
            f"or give {kind} a __str__"
        )
    return text


def _key(key: Any) -> str:
    """A key as JSON writes it: ``true`` and ``null``, not ``True`` and ``None``."""
    value = json_value(key)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()
