"""JSON schemas in the form that model providers agree on."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from jsonschema.protocols import Validator

Schema = dict[str, Any]

_NAMED = ("properties", "patternProperties", "dependentSchemas")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")
_DEFINITIONS = ("$defs", "definitions")


def inline_references(schema: Mapping[str, Any], *, prefix: str = "") -> tuple[Schema, dict[str, Schema]]:
    """Replace every ``$ref`` by what it names; return the schema and the definitions that must stay.

    Some providers refuse ``$ref``, so only a definition that contains itself keeps it: such references read
    ``#/$defs/<prefix><name>``, and those definitions belong in the ``$defs`` of the whole. Raises
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
    """A schema made by pydantic, without titles and in the older keywords that every provider knows."""
    result = map_subschemas(schema, simplify)
    result.pop("title", None)
    result.pop("discriminator", None)
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if "oneOf" in result:
        result["anyOf"] = result.pop("oneOf")
    return result


def map_subschemas(schema: Schema, change: Callable[[Schema], Schema]) -> Schema:
    """A copy with ``change`` applied to each schema directly inside; values such as enums are kept."""
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


def is_closed(schema: Schema) -> bool:
    """Return whether an object in the schema, definitions included, accepts no unknown properties."""
    parts = [schema, *schema.get("$defs", {}).values()]
    return any(part.get("additionalProperties") is False for whole in parts for part in _walk(whole))


def compile_schema(schema: Mapping[str, Any]) -> Validator:
    """A validator of values; raises ``BundleError`` if ``schema`` is not a JSON schema."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = "".join(f"[{key!r}]" for key in error.absolute_path)
        raise BundleError(f"not a JSON schema: {place + ': ' if place else ''}{error.message}") from error
    validator: Validator = Draft202012Validator(schema)
    return validator


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
    """The definitions that can be reached by following the references of ``start``."""
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
