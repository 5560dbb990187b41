"""JSON schemas in the form that model providers agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

Schema = dict[str, Any]


def inline_references(schema: Schema, *, prefix: str = "") -> tuple[Schema, dict[str, Schema]]:
    """A copy with every ``$ref`` replaced by what it names, and the definitions that must stay.

    Some providers refuse ``$ref``, so only a definition inside itself keeps it: such references read
    ``#/$defs/<prefix><name>``, and those definitions belong in the ``$defs`` of the whole. Raises
    ``BundleError`` for a reference that leaves the schema's own ``$defs``.
    """
    definitions = {**schema.get("definitions", {}), **schema.get("$defs", {})}
    kept: dict[str, Schema] = {}

    def expand(part: Any, around: tuple[str, ...] = ()) -> Any:
        if isinstance(part, list):
            return [expand(inner, around) for inner in part]
        if not isinstance(part, dict):
            return part
        reference = part.get("$ref")
        if not isinstance(reference, str):  # a property may have this name
            return {key: expand(value, around) for key, value in part.items()}
        beside = {key: expand(value, around) for key, value in part.items() if key != "$ref"}
        name = reference.removeprefix("#/$defs/").removeprefix("#/definitions/")
        if name not in definitions:
            raise BundleError(f"the reference {reference!r} does not name one of the schema's own $defs")
        if name not in around:
            return {**expand(definitions[name], (*around, name)), **beside}
        place = f"{prefix}{name}"
        if place not in kept:
            kept[place] = {}
            kept[place] = expand(definitions[name], (name,))
        return {"$ref": f"#/$defs/{place}", **beside}

    return expand({key: part for key, part in schema.items() if key not in ("$defs", "definitions")}), kept


def compile_schema(schema: Schema) -> Validator:
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


def simplify(part: Any, *, by_name: bool = False) -> Any:
    """A schema made by pydantic, without titles and in the older keywords that every provider knows."""
    if isinstance(part, list):
        return [simplify(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    if by_name:
        return {name: simplify(inner) for name, inner in part.items()}
    result = {
        key: value if key in ("default", "enum") else simplify(value, by_name=key in ("properties", "$defs"))
        for key, value in part.items()
        if key not in ("title", "discriminator")
    }
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if "oneOf" in result:
        result["anyOf"] = result.pop("oneOf")
    return result
