"""The arguments that a model wrote for a tool: parsing, and messages that say what is wrong with them."""

from __future__ import annotations

import json
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.strict_json import finite, is_too_deep
from reward_kit.agent.base.text import cut
from reward_kit.agent.tools.content import json_value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator
    from pydantic_core import ErrorDetails

    from reward_kit.agent.tools.json_schema import Schema

MAX_PROBLEMS = 8
"""Faults reported at once; fixing them shows the rest."""

_SHOWN = 80
"""Characters of a faulty value that are shown."""

_ENCODER = json.JSONEncoder(allow_nan=False, default=json_value)
_RULES = {"type": "must be of type", "enum": "must be one of", "const": "must be", "anyOf": "must fit one of"}
"""Keywords of JSON schema in words; the others read ``must have minimum 1``."""


class ArgumentError(ValueError):
    """Arguments that do not fit; the text says how to fix them."""

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = list(problems)
        hidden = len(self.problems) - MAX_PROBLEMS
        more = [f"{hidden} more"] if hidden > 0 else []
        super().__init__("; ".join([*self.problems[:MAX_PROBLEMS], *more]))


def read_arguments(arguments: Any) -> tuple[dict[str, Any], str]:
    """The arguments as an object and as JSON text; raises ``ArgumentError`` for anything but a JSON object.

    None, an empty text and ``null`` mean no arguments, as several models write it. NaN and infinities are not
    JSON.
    """
    if isinstance(arguments, (str, bytes, bytearray)):
        arguments = _parsed(arguments)
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ArgumentError([f"the arguments must be a JSON object, got {_shown(arguments)}"])
    try:
        return arguments, _ENCODER.encode(arguments)
    except (ValueError, TypeError, RecursionError) as error:
        raise ArgumentError([f"the arguments cannot be written as JSON ({_reason(error)})"]) from error


def _parsed(text: str | bytes | bytearray) -> Any:
    if not text.strip():
        return None
    try:
        parsed = json.loads(text, parse_constant=finite)
    except (ValueError, RecursionError) as error:
        raise ArgumentError([f"the arguments are not valid JSON ({_reason(error)})"]) from error
    if is_too_deep(parsed, text):
        raise ArgumentError(["the arguments are not valid JSON (nested too deeply)"])
    return parsed


def _reason(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def pydantic_problems(errors: Iterable[ErrorDetails], arguments: dict[str, Any], schema: Schema) -> list[str]:
    """One sentence per faulty place, shared by the failed alternatives of a union.

    ``schema`` is that of the arguments.
    """
    by_place: dict[str, list[str]] = {}
    shown: dict[str, str] = {}
    for error in errors:
        path = data_path(error["loc"], arguments)
        if error["type"] == "json_invalid":
            by_place.setdefault(f"the arguments are not valid JSON ({error['ctx']['error']})", [])
        elif error["type"] == "extra_forbidden" and len(path) == 1:
            by_place.setdefault(_unknown(path, list(schema["properties"])), [])
        elif error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            continue  # in an object inside, see ``unknown_names``
        elif error["type"] == "missing":
            by_place.setdefault(f"{_place([*path, error['loc'][-1]])} is missing", [])
        elif error["type"] == "json_schema":
            for problem in error["ctx"]["problems"]:
                by_place.setdefault(problem, [])
        else:
            place = _place(path)
            message = error["msg"].removeprefix("Value error, ").removeprefix("Input ")
            by_place.setdefault(place, []).append(message)
            shown[place] = f", got {_shown(_value_at(path, arguments))}"
    return [
        f"{place} {' or '.join(dict.fromkeys(messages))}{shown.get(place, '')}" if messages else place
        for place, messages in by_place.items()
    ]


def schema_problems(validator: Validator, value: Any, *, inside: Sequence[str] = ()) -> list[str]:
    """The faults of ``value``, found at ``inside`` in the arguments, one sentence each."""
    problems: list[str] = []
    for error in validator.iter_errors(value):
        path = [*inside, *error.absolute_path]
        if error.validator == "required":
            absent = [name for name in error.validator_value if name not in error.instance]
            problems += [f"{_place([*path, name])} is missing" for name in absent]
        elif error.validator == "additionalProperties" and error.validator_value is False:
            problems += _unknown_in(error, inside) or ()
        else:
            rule = _RULES.get(error.validator, f"must have {error.validator}")
            wanted = cut(json.dumps(error.validator_value, ensure_ascii=False), 200)
            problems.append(f"{_place(path)} {rule} {wanted}, got {_shown(error.instance)}")
    return list(dict.fromkeys(problems))


def unknown_names(validator: Validator, value: Any) -> list[str]:
    """A sentence for each name in ``value`` that an object does not have, and no other fault.

    Of the alternatives of a union, those count that have no other fault either.
    """
    return [problem for error in validator.iter_errors(value) for problem in _unknown_in(error) or ()]


def _unknown_in(error: ValidationError, inside: Sequence[str] = ()) -> list[str] | None:
    """The sentences on unknown names; None if the error is another one."""
    if error.validator == "additionalProperties" and error.validator_value is False:
        known = list(error.schema.get("properties", {}))
        path = [*inside, *error.absolute_path]
        return [_unknown([*path, name], known) for name in error.instance if name not in known]
    alternatives: dict[Any, list[str] | None] = {}
    for inner in error.context or ():
        found, others = _unknown_in(inner, inside), alternatives.get(inner.schema_path[0], [])
        alternatives[inner.schema_path[0]] = None if found is None or others is None else [*others, *found]
    return min((found for found in alternatives.values() if found), key=len, default=None)


def data_path(location: Sequence[int | str], arguments: dict[str, Any]) -> list[int | str]:
    """Pydantic's location without steps that are not in the data, such as the alternatives of a union."""
    path: list[int | str] = []
    value: Any = arguments
    for step in location:
        if isinstance(value, dict):
            inside = step in value
        else:
            inside = isinstance(value, list) and isinstance(step, int) and step < len(value)
        if inside:
            value = value[step]
            path.append(step)
    return path


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """`` (did you mean 'x'?)`` if a known name is close, else an empty text."""
    close = get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _unknown(path: Sequence[int | str], known: Sequence[str]) -> str:
    hint = did_you_mean(str(path[-1]), known)
    if not hint and known:
        hint = f" (known: {', '.join(map(repr, known))})"
    return f"{_place(path)} is unknown{hint}"


def _value_at(path: Sequence[int | str], arguments: Any) -> Any:
    for step in path:
        arguments = arguments[step]
    return arguments


def _place(path: Sequence[int | str]) -> str:
    """``'passengers[0].name'``, or ``the object`` for an empty path."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    return f"'{cut(text, _SHOWN)}'" if text else "the object"


def _shown(value: Any) -> str:
    """The value as JSON, cut if it is long, with the name of its type."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "number", float: "number"}
    if value is None:
        return "null"
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return names.get(type(value), type(value).__name__)
    return f"{cut(text, _SHOWN)} ({names.get(type(value), type(value).__name__)})"
