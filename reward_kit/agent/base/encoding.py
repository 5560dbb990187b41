"""JSON texts of any value, also of foreign code: what is written can be read again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
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
