"""JSON values and those of SQLite: strict reading, equality (exact and by value), copies."""

from __future__ import annotations

import json
import marshal
import math
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MAX_DEPTH = 100
"""Levels: far deeper than anything real, far from where Python's recursion ends."""
DAMAGED = (KeyError, TypeError, AttributeError, ValueError)
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
    """A copy of plain JSON values for foreign code, which may change it."""
    if isinstance(value, dict):
        return {
            name: inner if inner.__class__ in SCALARS else copied(inner)  # a call costs most
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [inner if inner.__class__ in SCALARS else copied(inner) for inner in value]
    return value
