"""The values of a tool call: the arguments that a model wrote, checked, and the text of the result."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, time
from enum import Enum
from functools import reduce
from itertools import islice
from operator import getitem
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import from_json, to_jsonable_python

from reward_kit.agent.base.encoding import MAX_DEPTH, is_too_deep, parsed_json, plain, whole
from reward_kit.agent.base.text import cut, did_you_mean, encodable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from jsonschema.exceptions import ValidationError as Violation
    from jsonschema.protocols import Validator
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

MAX_PROBLEMS = 8
"""Faults reported at once; fixing them shows the rest."""

_SHOWN = 80
"""Characters of a faulty value that are shown."""

_ODD = re.compile(r"[0-9][eE]|\\u|[0-9]{300}")
"""Possibly an infinite number, or half of a surrogate pair."""
_ENCODER = json.JSONEncoder(allow_nan=False, default=to_jsonable_python)
_RULES = {"type": "must be of type", "enum": "must be one of", "const": "must be", "anyOf": "must fit one of"}
"""Keywords of JSON schema in words; the others read ``must have minimum 1``."""
_KINDS = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}

Path = list[int | str]


class ArgumentError(ValueError):
    """Arguments that do not fit; the text says how to fix them."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.count = len(problems)
        hidden = self.count - MAX_PROBLEMS
        super().__init__("; ".join([*problems[:MAX_PROBLEMS], *([f"{hidden} more"] if hidden > 0 else [])]))


def read_arguments(arguments: Any) -> tuple[dict[str, Any], str]:
    """The arguments as an object and as JSON text; raises ``ArgumentError`` for anything but a JSON object.

    None, an empty text and ``null`` mean no arguments, as several models write it. NaN and infinities are not
    JSON.
    """
    if arguments.__class__ is str and arguments.isascii() and not _ODD.search(arguments):
        try:
            value = from_json(arguments, allow_inf_nan=False)
        except ValueError:
            value = None
        if value.__class__ is dict and arguments.count("{") + arguments.count("[") <= MAX_DEPTH:
            return value, arguments
    if isinstance(arguments, bytes | bytearray):
        arguments = arguments.decode(errors="replace")
    what = "are not valid JSON" if isinstance(arguments, str) else "cannot be written as JSON"
    try:
        if isinstance(arguments, str):
            text = encodable(arguments) if arguments.strip() else "null"
            arguments = parsed_json(text)
        else:
            text = _ENCODER.encode(arguments)
        is_deep = is_too_deep(arguments, text)
        if not is_deep and _ODD.search(text):  # half of a surrogate pair, perhaps, or a huge number
            arguments = plain(arguments)
            text = _ENCODER.encode(arguments)
    except RecursionError:
        is_deep = True
    except (ValueError, TypeError) as error:
        raise ArgumentError([f"the arguments {what} ({error})"]) from error
    if is_deep:
        raise ArgumentError([f"the arguments {what} (nested too deeply)"])
    if arguments is None:
        return {}, "{}"
    if not isinstance(arguments, dict):
        raise ArgumentError([f"the arguments must be a JSON object, got {_shown(arguments)}"])
    return arguments, text


@dataclass(frozen=True, slots=True)
class Check:
    """The check of a tool's arguments.

    ``types`` are pydantic's, for typed parameters. ``rules`` hold the ``handwritten`` schemas, and those of
    types with objects inside, of which only unknown names are reported.
    """

    schema: dict[str, Any]
    types: TypeAdapter[dict[str, Any]] | None = None
    rules: Validator | None = None
    handwritten: frozenset[str] = frozenset()

    def __call__(self, text: str) -> dict[str, Any]:
        if self.rules is None and self.types is not None:
            try:  # the usual case, at once
                return self.types.validate_json(text, strict=True)
            except ValidationError:
                pass
        values, problems = self._typed(text)
        if self.rules is not None:
            given = json.loads(text)
            problems += schema_problems(self.rules, given, self.handwritten if self.types else None)
            for name in self.handwritten & values.keys():
                values[name] = _whole_numbers(values[name], self.schema["properties"][name])
        if problems:
            raise ArgumentError(list(dict.fromkeys(problems)))
        return values

    def _typed(self, text: str) -> tuple[dict[str, Any], list[str]]:
        if self.types is None:
            return json.loads(text), []
        try:
            # as JSON: dates, enums and sets are taken in their JSON form, although the check is strict
            return self.types.validate_json(text, strict=True), []
        except ValidationError as error:
            given = json.loads(text)
            for fault in error.errors(include_url=False):  # JSON does not tell 5.0 from 5, pydantic does
                path, value = _found(fault["loc"], given)
                if isinstance(value, float):
                    reduce(getitem, path[:-1], given)[path[-1]] = whole(value)
        try:
            return self.types.validate_json(json.dumps(given), strict=True), []
        except ValidationError as error:
            faults = error.errors(include_url=False)
            return {}, pydantic_problems(faults, json.loads(text), self.schema["properties"])


def _whole_numbers(value: Any, schema: Any) -> Any:
    """``value`` with whole floats as ``int`` where the ``schema`` takes integers but no other numbers."""
    known = schema if isinstance(schema, dict) else {}
    parts = [one for word in ("anyOf", "allOf", "oneOf") for one in known.get(word) or ()]
    if isinstance(value, float) and any(map(_takes_numbers, (known, *parts))):
        return value
    for part in parts:
        value = _whole_numbers(value, part)
    if isinstance(value, dict):
        more, named = known.get("additionalProperties"), known.get("properties", {})
        return {key: _whole_numbers(one, named.get(key, more)) for key, one in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(one, known.get("items")) for one in value]
    types = known.get("type")
    return whole(value) if types == "integer" or (isinstance(types, list) and "integer" in types) else value


def _takes_numbers(schema: Any) -> bool:
    return isinstance(schema, dict) and "number" in (schema.get("type") or ())


def without_refused_nulls(value: Any, check: Callable[[str], object]) -> tuple[Any, list[Path]]:
    """Arguments without the nulls for which ``check`` finds more faults, and the paths of these."""

    def faults(arguments: Any) -> int:
        try:
            check(json.dumps(arguments))
        except ArgumentError as error:
            return error.count
        return 0

    dropped = nulls = list(_nulls(value, []))
    least = faults(reduce(_without, nulls, value)) if nulls else 0
    if not nulls or least >= faults(value):
        return value, []
    for way in nulls:  # those that do no harm are put back
        others = [one for one in dropped if one is not way]
        dropped = others if faults(reduce(_without, others, value)) <= least else dropped
    return reduce(_without, dropped, value), dropped


def _nulls(value: Any, way: Path) -> Iterator[Path]:
    for step, one in value.items() if isinstance(value, dict) else enumerate(value):
        if isinstance(one, dict | list):
            yield from _nulls(one, [*way, step])
        elif one is None and isinstance(value, dict):
            yield [*way, step]


def _without(value: Any, way: Path) -> Any:
    """A copy of ``value`` without the member at ``way``."""
    step, *rest = way
    copy = value.copy()
    if rest:
        copy[step] = _without(copy[step], rest)
    else:
        del copy[step]
    return copy


def pydantic_problems(
    errors: Iterable[ErrorDetails], arguments: dict[str, Any], known: Collection[str]
) -> list[str]:
    """One sentence per faulty place, shared by the failed alternatives of a union.

    ``known`` are the names of the parameters. Unknown names in objects inside are left to
    ``schema_problems``.
    """
    messages: dict[str, list[str]] = {}
    shown: dict[str, str] = {}
    for error in errors:
        path, value = _found(error["loc"], arguments)
        kind, place = error["type"], _place(path)
        if kind == "json_invalid":
            messages.setdefault(f"the arguments are not valid JSON ({error['ctx']['error']})", [])
        elif kind == "missing":
            messages.setdefault(f"{_place([*path, error['loc'][-1]])} is missing", [])
        elif kind == "extra_forbidden" and len(path) == 1:
            messages.setdefault(_unknown(path, known), [])
        elif kind not in ("extra_forbidden", "unexpected_keyword_argument"):
            message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
            messages.setdefault(place, []).append(message)
            shown[place] = f", got {_shown(value)}"
    return [
        f"{place} {' or '.join(dict.fromkeys(said))}{shown[place]}" if said else place
        for place, said in messages.items()
    ]


def schema_problems(
    validator: Validator, arguments: dict[str, Any], handwritten: Collection[str] | None
) -> list[str]:
    """The faults of arguments by a JSON schema, one sentence each.

    Of parameters that are not ``handwritten`` (None: all are) only unknown names are faults.
    """
    problems: list[str] = []
    for error in validator.iter_errors(arguments):
        path = list(error.absolute_path)
        unknown = _unknown_names(error)
        if handwritten is not None and path[0] not in handwritten:
            problems += unknown or ()
        elif error.validator == "required":
            absent = [name for name in error.validator_value if name not in error.instance]
            problems += [f"{_place([*path, name])} is missing" for name in absent]
        elif error.validator == "additionalProperties" and unknown is not None:
            problems += unknown
        else:
            rule = _RULES.get(error.validator, f"must have {error.validator}")
            wanted = cut(json.dumps(error.validator_value, ensure_ascii=False), 200)
            problems.append(f"{_place(path)} {rule} {wanted}, got {_shown(error.instance)}")
    return problems


def _unknown_names(error: Violation) -> list[str] | None:
    """The sentences on unknown names; None if the error is another one.

    Of the alternatives of a union, the one with the fewest unknown names and no other fault counts.
    """
    if error.validator == "additionalProperties" and error.validator_value is False:
        known = error.schema.get("properties", {})
        return [_unknown([*error.absolute_path, name], known) for name in error.instance if name not in known]
    alternatives: dict[Any, list[str] | None] = {}
    for inner in error.context or ():
        found, others = _unknown_names(inner), alternatives.get(inner.schema_path[0], [])
        alternatives[inner.schema_path[0]] = None if found is None or others is None else [*others, *found]
    return min((found for found in alternatives.values() if found), key=len, default=None)


def _found(location: Sequence[int | str], arguments: dict[str, Any]) -> tuple[Path, Any]:
    """The path to a faulty value, and the value.

    Pydantic's location has steps that are not in the data, such as the alternatives of a union.
    """
    path: Path = []
    value: Any = arguments
    for step in location:
        known = value if isinstance(value, dict) else range(len(value) if isinstance(value, list) else 0)
        if step in known:
            value = value[step]
            path.append(step)
    return path, value


def _unknown(path: Path, known: Collection[str]) -> str:
    listed = f" (known: {', '.join(map(repr, known))})" if known else ""
    return f"{_place(path)} is unknown{did_you_mean(str(path[-1]), known) or listed}"


def _place(path: Path) -> str:
    """``'passengers[0].name'``, or ``the object`` for an empty path."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    return f"'{cut(text, _SHOWN)}'" if text else "the object"


def _shown(value: Any) -> str:
    """The value as JSON, cut if it is long, with the name of its type."""
    if value is None:
        return "null"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return f"{cut(text, _SHOWN)} ({_KINDS.get(type(value), type(value).__name__)})"


# -- the text that a model sees of a value that a tool returned

MAX_CHARACTERS = 1_000_000
"""The longest content passed on whole: far above any context window, far below what would exhaust memory."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+>$")
_text_of_json = json.JSONEncoder(ensure_ascii=False).encode
_KEYS = frozenset({str})
_PLAIN = frozenset({str, int, bool, type(None)})
"""Types of values that are JSON as they are."""


def content_of(value: Any) -> str:
    """Return a ``str`` as it is, anything else as JSON text (``None`` as ``null``), always valid Unicode.

    JSON keeps the letters of every script instead of escaping them. Text longer than ``MAX_CHARACTERS`` is
    cut, with a note.
    """
    text = str(json_value(value)) if isinstance(value, str) else _text_of_json(json_value(value))
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
    if hasattr(value, "returns_rows"):  # the result of a statement
        return list(map(json_value, value)) if value.returns_rows else {"rowcount": value.rowcount}
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Iterable):
        return [json_value(item) for item in islice(value, MAX_CHARACTERS)]  # some iterables are endless
    text = str(value)
    if _ADDRESS.search(text):
        kind = type(value).__name__
        fault = f"a value of type {kind} is not JSON and has no text form"
        raise TypeError(f"{fault}: return JSON values, or give {kind} a __str__")
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
