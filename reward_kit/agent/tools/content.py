"""What a model sees of a value that a tool returned."""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
from collections.abc import Iterable, Mapping
from datetime import date, time
from enum import Enum
from itertools import islice, takewhile
from typing import Any

MAX_CHARACTERS = 1_000_000
"""The longest content that is handed on whole: far above any context window, far below what would exhaust
memory.
"""

_MOST = MAX_CHARACTERS + 16
"""What weighs more is not even turned into text as a whole."""
_CONTAINERS = (dict, list, tuple, set, frozenset)
_SCALARS = frozenset({int, float, bool, type(None)})
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>$")
_ENCODER = json.JSONEncoder(ensure_ascii=False, check_circular=False)


def content_of(value: Any) -> str:
    """A ``str`` as it is, anything else as JSON text (``None`` as ``null``), always valid Unicode.

    JSON keeps letters of every script readable instead of escaping them; text past ``MAX_CHARACTERS`` is cut
    with a note.
    """
    more = ""
    if isinstance(value, str):
        text = value
    else:
        if _weight(value, _MOST) > _MOST:
            value, more = _cut_off(value, [_MOST]), "more than "
        text = _ENCODER.encode(json_value(value))
    if not text.isascii():
        # Half of a surrogate pair cannot be sent to a model or written to a file.
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if len(text) > MAX_CHARACTERS:
        return (
            f"{text[:MAX_CHARACTERS]}\n[cut: the first {MAX_CHARACTERS:,} of {more}{len(text):,} characters]"
        )
    return str(text)


def _weight(value: Any, most: int) -> int:
    """At most about as many as there are characters in the JSON text of ``value``; those past ``most`` are
    not counted.
    """
    weight, parts, kind = 2, value, type(value)
    if kind is dict:
        weight, parts = 2 + _weight_of_keys(value), value.values()
    elif kind is not list:
        if isinstance(value, str):
            return len(value) + 2
        if not _is_container(value):
            return 2
        if isinstance(value, Mapping):
            weight, parts = 2 + _weight_of_keys(value), value.values()
    for part in parts:
        kind = type(part)
        if kind is str:
            weight += len(part) + 2
        else:
            weight += 2 if kind in _SCALARS else _weight(part, most - weight)
        if weight > most:
            break
    return weight


def _weight_of_keys(value: Mapping[Any, Any]) -> int:
    try:
        return sum(map(len, value)) + 2 * len(value)
    except TypeError:  # keys may be numbers
        return 2 * len(value)


def _cut_off(value: Any, left: list[int]) -> Any:
    """The beginning of ``value``, which weighs about what is ``left``."""
    left[0] -= len(value) + 2 if isinstance(value, str) else 2
    if not _is_container(value):
        return value
    if isinstance(value, Mapping):
        items = takewhile(lambda _: left[0] > 0, value.items())
        return {_cut_off(key, left): _cut_off(item, left) for key, item in items}
    return [_cut_off(item, left) for item in takewhile(lambda _: left[0] > 0, value)]


def _is_container(value: Any) -> bool:
    """Whether ``json_value`` goes through the parts that a loop over ``value`` gives."""
    kind = type(value)
    return kind in _CONTAINERS or (
        isinstance(value, (*_CONTAINERS, Mapping)) and not hasattr(kind, "_asdict")
    )


def json_value(value: Any) -> Any:
    """The value as plain JSON data: rows, dataclasses and pydantic models as objects, dates in ISO 8601,
    bytes as text (base64 where they are not UTF-8), NaN and infinities as null, whatever else as its ``str``.

    Raises ``RecursionError`` for a value that contains itself, and ``TypeError`` for one whose ``str`` is but
    where it lies in memory.
    """
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return value
    if kind is float:
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {_key(key): json_value(item) for key, item in value.items()}
    if hasattr(kind, "_asdict"):  # rows and named tuples
        return json_value(value._asdict())
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    return _other_json_value(value)


def _other_json_value(value: Any) -> Any:
    """What is no plain container: the first of these that fits."""
    if isinstance(value, Enum):
        return json_value(value.value)
    if isinstance(value, (str, int, float)):
        return json_value(next(base for base in (str, int, float) if isinstance(value, base))(value))
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _text_of(bytes(value))
    if isinstance(value, (set, frozenset)):
        # Its own order is another one in each process.
        return sorted(map(json_value, value), key=lambda item: (type(item).__name__, str(item)))
    if hasattr(value, "model_dump"):
        return json_value(value.model_dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_value(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if not getattr(value, "returns_rows", True):  # the result of a statement that only wrote
        return {"rowcount": value.rowcount}
    if isinstance(value, Iterable):
        # as many as would fill the content: some have no end
        return [json_value(item) for item in islice(value, MAX_CHARACTERS)]
    text = str(value)
    if _ADDRESS.search(text):
        kind = type(value).__name__
        raise TypeError(
            f"a value of type {kind} is no JSON and has no text of its own: return JSON values, "
            f"or give {kind} a __str__"
        )
    return text


def _key(key: Any) -> str:
    """A key as JSON writes it; ``true`` and ``null`` where Python would say ``True`` and ``None``."""
    if isinstance(key, str):
        return str(key.value) if isinstance(key, Enum) else key
    value = json_value(key)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _text_of(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return base64.b64encode(data).decode()
