"""JSON schemas in the form that model providers agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsonschema.protocols import Validator

Schema = dict[str, Any]


def inline_references(schema: Schema, *, prefix: str = "") -> tuple[Schema, dict[str, Schema]]:
    """A copy with every ``$ref`` replaced by what it names, and the definitions that must stay.

    Some providers refuse ``$ref``, so only a definition that contains itself keeps it: such references read
    ``#/$defs/<prefix><name>``, and those definitions belong in the ``$defs`` of the whole. Raises
    ``BundleError`` for a reference that leaves the schema's own ``$defs``.
    """
    definitions = {**schema.get("definitions", {}), **schema.get("$defs", {})}

    def referenced(part: Schema) -> str | None:
        reference = part.get("$ref")
        if not isinstance(reference, str):  # a property may have this name
            return None
        name = reference.removeprefix("#/$defs/").removeprefix("#/definitions/")
        if name not in definitions:
            raise BundleError(f"the reference {reference!r} does not name one of the schema's own $defs")
        return name

    def reachable(start: str, seen: set[str]) -> set[str]:
        for name in filter(None, map(referenced, _parts(definitions[start]))):
            if name not in seen:
                seen.add(name)
                reachable(name, seen)
        return seen

    recursive = {name for name in definitions if name in reachable(name, set())}

    def expand(part: Any) -> Any:
        if isinstance(part, list):
            return [expand(inner) for inner in part]
        if not isinstance(part, dict):
            return part
        name = referenced(part)
        beside = {key: expand(value) for key, value in part.items() if name is None or key != "$ref"}
        if name is None:
            return beside
        if name in recursive:
            return {"$ref": f"#/$defs/{prefix}{name}", **beside}
        return {**expand(definitions[name]), **beside}

    kept = {f"{prefix}{name}": expand(definitions[name]) for name in sorted(recursive)}
    return expand({key: part for key, part in schema.items() if key not in ("$defs", "definitions")}), kept


def is_closed(schema: Schema) -> bool:
    """True if an object in the schema accepts no unknown properties, or may do so in a definition."""
    return any(part.get("additionalProperties") is False or "$ref" in part for part in _parts(schema))


def _parts(value: Any) -> Iterator[Schema]:
    """All objects inside a JSON value, itself included."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _parts(inner)


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


class ClosedObjects(GenerateJsonSchema):
    """JSON schemas that close the objects of classes without an ``extra`` of their own."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """Pydantic's hook for a model; a root model is not an object."""
        result = super().model_schema(schema)
        return result if schema.get("root_model") else _closed(result, schema, "model_config")

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        """Pydantic's hook for a dataclass."""
        return _closed(super().dataclass_schema(schema), schema, "__pydantic_config__")

    def typed_dict_schema(self, schema: Any) -> JsonSchemaValue:
        """Pydantic's hook for a ``TypedDict``."""
        return _closed(super().typed_dict_schema(schema), schema, "__pydantic_config__")


def _closed(result: JsonSchemaValue, schema: Any, config: str) -> JsonSchemaValue:
    if "extra" not in getattr(schema.get("cls"), config, {}):
        result["additionalProperties"] = False
    return result


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
