"""JSON: values and texts of any code, for files that can be read again, and strictly parsed."""

from __future__ import annotations

import json
import marshal
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, is_dataclass
from functools import cache
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import foreign_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydantic import TypeAdapter

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

    Names, unknown values, NaN and infinities become text, halves of surrogate pairs ``?``; long texts are
    cut, huge integers hexadecimal. Raises ``ValueError`` for a value that holds itself or is too deep or too
    large; unless ``strict``, that part of it becomes ``…``.
    """
    left = MOST_VALUES

    def of(value: Any, levels: int) -> Any:
        nonlocal left
        kind = value.__class__
        if kind is str:
            fits = value.isascii() and len(value) <= LONGEST_VALUE
            return value if fits else foreign_text(value, LONGEST_VALUE)
        if kind in SCALARS:
            if kind is float and not math.isfinite(value):
                return str(value)
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


@cache
def _core() -> Any:
    """``pydantic_core``, which the help of commands does without."""
    import pydantic_core

    return pydantic_core


@cache
def adapter_of(kind: Any) -> TypeAdapter[Any]:
    """Pydantic's, made once for each ``kind``: it takes a while."""
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def json_bytes(value: Any) -> bytes:
    """``value`` as UTF-8 JSON without spaces; what that cannot hold is as ``plain`` makes it."""
    to_json = _core().to_json
    try:
        encoded: bytes = to_json(value, inf_nan_mode="constants", fallback=str)
    except ValueError:  # half of a surrogate pair, bytes that are no text, or nested too deep for it
        encoded = to_json(plain(value, strict=False), inf_nan_mode="constants")
    return encoded


def json_text(value: Any) -> str:
    """``json_bytes`` as text."""
    return json_bytes(value).decode()


def readable_json(members: Mapping[str, Any]) -> Iterator[bytes]:
    """The parts of an object with a line for each field, and for each item of a list of objects.

    No value is torn apart. A list may be an iterator: few of its items are in memory at once.
    ``json.dumps(indent=...)`` would be many times slower, and tear small objects apart.
    """
    part, before = bytearray(), b"{\n "
    for name, value in members.items():
        part += before + json.dumps(name).encode() + b": "
        before = b",\n "
        if isinstance(value, Iterator) or (isinstance(value, list) and value and isinstance(value[0], dict)):
            start = b"[\n  "
            for item in value:
                part += start + json_bytes(item)
                start = b",\n  "
                if len(part) > LONGEST_PART:
                    yield bytes(part)
                    part.clear()
            part += b"[]" if start == b"[\n  " else b"\n ]"
        else:
            part += json_bytes(value)
    yield bytes(part + b"\n}\n")


# -- parsed strictly

MAX_DEPTH = 100
"""Levels: far deeper than anything real, far from where Python's recursion ends."""
DAMAGED = (LookupError, TypeError, AttributeError, ValueError)
"""Exceptions of reading JSON whose fields are missing or not of their types."""


def finite(text: str) -> float:
    """A float that JSON can hold, for ``parse_constant`` and ``parse_float``; ``ValueError`` for others."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a JSON number")
    return number


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, for ``object_pairs_hook``; ``ValueError`` for a key that it has twice."""
    value: dict[str, Any] = {}
    for name, one in pairs:
        if name in value:
            raise ValueError(f"an object has the key {name!r} twice")
        value[name] = one
    return value


_DECODER = json.JSONDecoder(parse_constant=finite, parse_float=finite)
_STRICT = json.JSONDecoder(parse_constant=finite, parse_float=finite, object_pairs_hook=without_repeats)


def parsed_json(text: str, decoder: json.JSONDecoder = _DECODER) -> Any:
    """The value of a JSON text; ``ValueError`` for NaN, infinities, and nesting beyond ``MAX_DEPTH``."""
    with suppress(RecursionError):
        value = decoder.decode(text)
        if not is_too_deep(value, text):
            return value
    raise ValueError("nested too deeply")


def is_too_deep(value: Any, text: str | bytes | bytearray) -> bool:
    """True if ``value`` is nested more than ``MAX_DEPTH`` levels deep; ``text`` is its JSON."""
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


def whole(value: Any) -> Any:
    """A whole float as ``int`` (exact, also beyond 2**53); any other value as it is."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def normal(value: Any) -> Any:
    """The form that equal values share: 12 for 12.0, and JSON text with sorted keys.

    Only the text of a JSON object or array is JSON text: "12", "007" and "1e5" stay as they are.
    """
    if isinstance(value, float):
        return whole(value)
    if isinstance(value, dict):
        return {key: normal(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list):
        return list(map(normal, value))
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        with suppress(ValueError):
            return json.dumps(normal(parsed_json(value, _STRICT)), ensure_ascii=False)
    return value


def equal_values(one: Any, other: Any) -> bool:
    """The one definition of equal values: their ``normal`` forms and the types of these are the same."""
    return one is other or repr(normal(one)) == repr(normal(other))


def typed(values: Sequence[Any]) -> bytes:
    """A hashable form of ``values`` that keeps 60 apart from 60.0, -0.0 from 0.0, 'a' from b'a'."""
    return marshal.dumps(tuple(values), 2)  # later versions depend on which objects are shared or interned


def typed_items(values: Mapping[str, Any] | None, *, whole: bool = False) -> bytes:
    """As ``typed``, of named values in any order; if ``whole``, None counts as a value that is not named."""
    if values is None:
        return b""
    items = (item for item in values.items() if not whole or item[1] is not None)
    return marshal.dumps(sorted(items, key=itemgetter(0)), 2)


def same(left: Any, right: Any) -> bool:
    """True for values that ``typed`` keeps together."""
    if type(left) is not type(right) or left != right:
        return False
    return bool(left) or not isinstance(left, float) or str(left) == str(right)


def encode(value: Any) -> Any:
    """A value of SQLite in JSON, which has no word for bytes and infinity."""
    if isinstance(value, bytes):
        return {"$blob": value.hex()}
    if isinstance(value, float) and value - value != 0.0:
        return {"$real": repr(value)}
    return value


def decode(value: Any) -> Any:
    """The inverse of ``encode``."""
    if isinstance(value, dict):
        return bytes.fromhex(value["$blob"]) if "$blob" in value else float(value["$real"])
    return value


SCALARS = frozenset({str, int, float, bool, type(None)})


def copied(value: Any) -> Any:
    """A copy of JSON values for foreign code, which may change it."""
    try:
        return marshal.loads(marshal.dumps(value))  # noqa: S302 - a third of the time of JSON
    except ValueError:  # a value of a class of its own
        return deepcopy(value)
