"""JSON schemas in the form that model providers agree on."""

from __future__ import annotations

import copy
import functools
import re
from typing import TYPE_CHECKING, Any

from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from jsonschema.protocols import Validator

Schema = dict[str, Any]

_NAMED = ("properties", "patternProperties", "dependentSchemas")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")
_DEFINITIONS = ("$defs", "definitions")


def inline_references(schema: Mapping[str, Any], *, prefix: str = "") -> tuple[Schema, dict[str, Schema]]:
    """The schema with every ``$ref`` replaced by what it names, and the definitions that cannot be replaced.

    Some providers refuse ``$ref``, so only a definition that contains itself keeps it: such references read
    ``#/$defs/<prefix><name>``, and those definitions are returned for the ``$defs`` of the whole. Raises
    ``BundleError`` for a reference that leaves the schema's own ``$defs``.
    """
    definitions: dict[str, Schema] = {}
    for keyword in _DEFINITIONS:
        definitions.update(schema.get(keyword, {}))
    recursive = {name for name in definitions if name in _reachable(name, definitions)}

    def expand(part: Schema) -> Schema:
        name = _referenced(part, definitions)
        part = {key: value for key, value in part.items() if key not in _DEFINITIONS}
        if name is None:
            return map_subschemas(part, expand)
        beside = {key: value for key, value in part.items() if key != "$ref"}
        if name in recursive:
            return {"$ref": f"#/$defs/{prefix}{name}", **beside}
        return {**expand(definitions[name]), **beside}

    kept = {f"{prefix}{name}": map_subschemas(definitions[name], expand) for name in sorted(recursive)}
    return expand(dict(schema)), kept


def simplify(schema: Schema) -> Schema:
    """A schema that pydantic made, without its titles and in the older keywords that every provider knows."""
    result = map_subschemas(schema, simplify)
    result.pop("title", None)
    result.pop("discriminator", None)
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if "oneOf" in result:
        result["anyOf"] = result.pop("oneOf")
    return result


def map_subschemas(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """A copy in which each schema directly inside has gone through ``change``; values such as enums are left
    alone.
    """
    result: Schema = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, dict):
            result[key] = {
                name: change(part) if isinstance(part, dict) else part for name, part in value.items()
            }
        elif key in _LISTED and isinstance(value, list):
            result[key] = [change(part) if isinstance(part, dict) else part for part in value]
        elif key in _SINGLE and isinstance(value, dict):
            result[key] = change(value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def names_at(schema: Schema, path: Sequence[int | str]) -> list[str]:
    """The properties of the objects that may stand at a place in what fits ``schema``."""
    definitions: Mapping[str, Schema] = schema.get("$defs", {})
    parts = _alternatives(schema, definitions)
    for step in path:
        parts = [
            one for part in parts for below in _below(part, step) for one in _alternatives(below, definitions)
        ]
    return list(dict.fromkeys(name for part in parts for name in part.get("properties", {})))


def _alternatives(part: Schema, definitions: Mapping[str, Schema]) -> list[Schema]:
    """The schemas of which a value at this place may have to fit one: the part, and those that it names."""
    found: list[Schema] = []
    waiting = [part]
    while waiting:
        one = waiting.pop(0)
        if any(one is other for other in found):  # a definition that names itself
            continue
        found.append(one)
        name = _referenced(one, definitions)
        waiting += [] if name is None else [definitions[name]]
        waiting += [other for keyword in ("anyOf", "oneOf", "allOf") for other in one.get(keyword, [])]
    return found


def _below(part: Schema, step: int | str) -> list[Schema]:
    """What ``part`` says of the value at one step into it."""
    if isinstance(step, str):
        below = part.get("properties", {}).get(step, part.get("additionalProperties"))
    else:
        first = part.get("prefixItems", [])
        below = first[step] if step < len(first) else part.get("items")
    return [below] if isinstance(below, dict) else []


def compile_schema(schema: Mapping[str, Any]) -> Validator:
    """A checker of values; raises ``BundleError`` where ``schema`` is no JSON schema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = "".join(f"[{key!r}]" for key in error.absolute_path)
        raise BundleError(f"not a JSON schema: {place + ': ' if place else ''}{error.message}") from error
    return _validator_class()(schema)


@functools.cache
def _validator_class() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    additional = Draft202012Validator.VALIDATORS["additionalProperties"]
    return extend(
        Draft202012Validator,
        {
            "pattern": _pattern_faults,
            "patternProperties": _named_faults,
            "additionalProperties": functools.partial(_additional_faults, additional),
        },
    )


def _pattern_faults(_validator: Validator, pattern: str, instance: Any, _schema: Schema) -> Iterator[Any]:
    """The keyword ``pattern``, in a time that grows with the text alone."""
    from jsonschema.exceptions import ValidationError

    if isinstance(instance, str) and not _matcher(pattern)(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def _named_faults(
    validator: Any, patterns: Mapping[str, Any], instance: Any, _schema: Schema
) -> Iterator[Any]:
    """The keyword ``patternProperties``, matched as ``pattern`` is."""
    if not isinstance(instance, dict):
        return
    for pattern, part in patterns.items():
        for name in filter(_matcher(pattern), instance):
            yield from validator.descend(instance[name], part, path=name, schema_path=pattern)


def _additional_faults(
    check: Callable[..., Iterator[Any]], validator: Any, allowed: Any, instance: Any, schema: Schema
) -> Iterator[Any]:
    """The keyword ``additionalProperties``: those that match one of ``patternProperties`` are no additional
    ones.
    """
    patterns = schema.get("patternProperties")
    if patterns and isinstance(instance, dict):
        matched = {name for pattern in patterns for name in filter(_matcher(pattern), instance)}
        schema = {"properties": {**schema.get("properties", {}), **dict.fromkeys(matched, True)}}
    yield from check(validator, allowed, instance, schema) or ()


@functools.lru_cache(maxsize=256)
def _matcher(pattern: str) -> Callable[[str], object]:
    """What tells whether a text holds the pattern.

    Python's own expressions try every way to part a text (``(a+)+$``), and hold up all threads meanwhile.
    Those of pydantic do not; they stand in where they can and mean the same.
    """
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    python_alone = functools.partial(re.search, pattern)
    if _OTHERWISE_THERE.search(pattern):
        return python_alone
    try:
        fits = SchemaValidator(core_schema.str_schema(pattern=pattern)).isinstance_python
    except SchemaError:  # one that looks ahead or back
        return python_alone
    ends_before_newline = "$" in pattern

    def matches(text: str) -> bool:
        return fits(text) or (ends_before_newline and text.endswith("\n") and fits(text[:-1]))

    return matches


_OTHERWISE_THERE = re.compile(r"\\[<>]|&&|--|~~|\[[^\]]*\[")
"""Edges of words, and sets in sets; plain characters in Python."""


def _referenced(part: Schema, definitions: Mapping[str, Schema]) -> str | None:
    """The definition that the schema itself refers to."""
    reference = part.get("$ref")
    if reference is None:
        return None
    for keyword in _DEFINITIONS:
        name = str(reference).removeprefix(f"#/{keyword}/")
        if name != reference and name in definitions:
            return name
    raise BundleError(f"the reference {reference!r} does not name one of the schema's own $defs")


def _reachable(start: str, definitions: Mapping[str, Schema]) -> set[str]:
    """The definitions that following the references of ``start`` comes to."""
    waiting, seen = [start], set[str]()
    while waiting:
        found = {
            name for part in _walk(definitions[waiting.pop()]) if (name := _referenced(part, definitions))
        }
        waiting.extend(found - seen)
        seen |= found
    return seen


def _walk(schema: Schema) -> Iterator[Schema]:
    """The schema and all schemas inside it."""
    inside: list[Schema] = []

    def collect(part: Schema) -> Schema:
        inside.append(part)
        return part

    map_subschemas(schema, collect)
    yield schema
    for part in inside:
        yield from _walk(part)
