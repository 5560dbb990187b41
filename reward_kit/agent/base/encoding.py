"""JSON texts of any value, also of foreign code: for files, which can be read again, and for models."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, time
from enum import Enum
from functools import cache
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.strict_json import MAX_DEPTH, SCALARS, copied
from reward_kit.agent.base.text import foreign_text

if TYPE_CHECKING:
    from collections.abc import Callable

MOST_VALUES = 100_000
"""Values in one that foreign code hands over."""
LONGEST_VALUE = 1_000_000
"""Characters of a text in it."""
LONGEST_PART = 65_536
"""Bytes of a part of a file from which on it is handed over."""
LONG = 10_000
"""Characters of a text at which it is looked at closely."""
LONGEST_INTEGER = 1023
"""Bits of an integer in it, as many as of the largest float."""


def plain(value: Any, *, strict: bool = True) -> Any:
    """A copy of a foreign value that can be written as JSON, and read again.

    Names and unknown values become text, halves of surrogate pairs ``?``; long texts are cut, huge integers
    hexadecimal. Raises ``ValueError`` for a value that holds itself or is too deep or too large; unless
    ``strict``, that part of it becomes ``…``.
    """
    left = MOST_VALUES

    def of(value: Any, levels: int) -> Any:
        nonlocal left
        kind = value.__class__
        if kind is str:
            fits = value.isascii() and len(value) <= LONGEST_VALUE
            return value if fits else foreign_text(value, LONGEST_VALUE)
        if kind in SCALARS:
            return hex(value) if kind is int and value.bit_length() > LONGEST_INTEGER else value
        if kind is not dict and kind is not list:
            value = _simple(value)
            if isinstance(value, str | int | float):
                return of(value, levels)
        left -= len(value)
        if not levels or left < 0:
            if strict:
                raise ValueError("it holds itself, or is nested too deeply or too large")
            return "…"
        if kind is dict or isinstance(value, Mapping):
            return {  # a call costs most
                name if name.__class__ is str and name.isascii() and len(name) < LONG else of(str(name), 1): (
                    inner
                    if inner is None or (inner.__class__ is str and inner.isascii() and len(inner) < LONG)
                    else of(inner, levels - 1)
                )
                for name, inner in value.items()
            }
        return [of(inner, levels - 1) for inner in value]

    copy = of(value, MAX_DEPTH)
    of = None  # type: ignore[assignment]  # it refers to itself, and would stay as garbage
    return copy


def _simple(value: Any) -> Any:
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int | float):
        return int(value) if isinstance(value, int) else float(value)
    if hasattr(value, "model_dump"):
        value = value.model_dump()
    elif is_dataclass(value) and not isinstance(value, type):
        value = as_json(value)
    return value if isinstance(value, Mapping | list | tuple | set | frozenset) else str(value)


def as_json(value: Any) -> dict[str, Any]:
    """The fields of a dataclass, several of them; unlike ``asdict`` this copies nothing."""
    names, values = _fields(value.__class__)
    return dict(zip(names, values(value), strict=True))


@cache
def _fields(kind: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    names = tuple(one.name for one in fields(kind))
    return names, attrgetter(*names)


def json_bytes(value: Any) -> bytes:
    """``value`` as UTF-8 JSON without spaces; what that cannot hold is as ``plain`` makes it."""
    from pydantic_core import to_json

    try:
        return to_json(value, inf_nan_mode="constants", fallback=str)
    except ValueError:  # half of a surrogate pair, bytes that are no text, or nested too deep for it
        return to_json(plain(value, strict=False), inf_nan_mode="constants")


def json_text(value: Any) -> str:
    """``json_bytes`` as text."""
    return json_bytes(value).decode()


def json_copy(value: Any) -> Any:
    """A copy of JSON values of any size for foreign code; ``copied`` is quicker for a few."""
    from pydantic_core import from_json, to_json

    try:
        return from_json(to_json(value))
    except ValueError:
        return copied(value)


def readable_json(members: Mapping[str, Any]) -> Iterator[bytes]:
    """The parts of an object with a line for each field, and for each item of a list of objects.

    No value is torn apart. A list may be an iterator: few of its items are in memory at once.
    ``json.dumps(indent=...)`` would be many times slower, and tear small objects apart.
    """
    part, before = b"", b"{\n "
    for name, value in members.items():
        part += before + json.dumps(name).encode() + b": "
        before = b",\n "
        if isinstance(value, Iterator) or (isinstance(value, list) and value and isinstance(value[0], dict)):
            start = b"[\n  "
            for item in value:
                part += start + json_bytes(item)
                start = b",\n  "
                if len(part) > LONGEST_PART:
                    yield part
                    part = b""
            part += b"[]" if start == b"[\n  " else b"\n ]"
        else:
            part += json_bytes(value)
    yield part + b"\n}\n"


# -- the text that a model sees of a value that a tool returned

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
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_value(getattr(value, field.name)) for field in fields(value)}
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
