"""Strict JSON: limits of numbers and nesting, copies of values, encoders."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import foreign_text

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_DEPTH = 100
"""Levels: far deeper than anything real, far from where Python's recursion ends."""
MOST_VALUES = 100_000
"""Values in one that foreign code hands over."""
LONGEST_VALUE = 1_000_000
"""Characters of a text in it."""
LONGEST_INTEGER = 1023
"""Bits of an integer in it, as many as of the largest float."""


def finite(text: str) -> float:
    """A float that JSON can hold, for ``parse_constant`` and ``parse_float``; ``ValueError`` for others."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a JSON number")
    return number


_DECODER = json.JSONDecoder(parse_constant=finite, parse_float=finite)


def parsed_json(text: str) -> Any:
    """The value of a JSON text; ``ValueError`` for NaN, infinities, and nesting beyond ``MAX_DEPTH``."""
    with suppress(RecursionError):
        value = _DECODER.decode(text)
        if not is_too_deep(value, text):
            return value
    raise ValueError("nested too deeply")


def is_too_deep(value: Any, text: str | bytes | bytearray) -> bool:
    """True if ``value`` is nested more than ``MAX_DEPTH`` levels deep; ``text`` is what it was read from."""
    objects, lists = ("{", "[") if isinstance(text, str) else (b"{", b"[")
    if text.count(objects) + text.count(lists) <= MAX_DEPTH:  # type: ignore[arg-type]  # both are of its kind
        return False  # the usual case, without a look at the value
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


_SCALARS = frozenset({str, int, float, bool, type(None)})


def copied(value: Any) -> Any:
    """A copy of plain JSON values for foreign code, which may change it."""
    if isinstance(value, dict):
        return {
            name: inner if inner.__class__ in _SCALARS else copied(inner)  # a call costs most
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [inner if inner.__class__ in _SCALARS else copied(inner) for inner in value]
    return value


def plain(value: Any, *, strict: bool = True) -> Any:
    """A copy of a foreign value that can be written as JSON, and read again.

    Names and unknown values become text, halves of surrogate pairs ``?``; long texts are cut, huge integers
    hexadecimal. Raises ``ValueError`` for a value that holds itself or is too deep or too large; unless
    ``strict``, that part of it becomes ``…``.
    """
    left = MOST_VALUES

    def of(value: Any, levels: int) -> Any:
        nonlocal left
        kind = type(value)
        if kind is str:
            fits = value.isascii() and len(value) <= LONGEST_VALUE
            return value if fits else foreign_text(value, LONGEST_VALUE)
        if kind in _SCALARS:
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
        if isinstance(value, Mapping):
            return {of(str(name), 1): of(inner, levels - 1) for name, inner in value.items()}
        return [of(inner, levels - 1) for inner in value]

    return of(value, MAX_DEPTH)


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


def readable_json(members: Mapping[str, Any]) -> bytes:
    """An object with a line for each field, and for each item of a field that is a list of objects.

    ``json.dumps(indent=...)`` would be many times slower, and tear small objects apart.
    """
    parts = []
    for name, value in members.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            text = b"[\n  " + b",\n  ".join(map(json_bytes, value)) + b"\n ]"
        else:
            text = json_bytes(value)
        parts.append(json_bytes(name) + b": " + text)
    return b"{\n " + b",\n ".join(parts) + b"\n}\n"
