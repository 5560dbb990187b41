"""The JSON schema of a tool's arguments, and the check of them, both built from its parameters.

JSON types are strict: ``"5"`` and ``true`` are not integers, ``5`` and ``5.0`` are. ``null`` is accepted for
a parameter whose default is ``None``. Unknown names are refused, also in objects inside unless their class
says otherwise (``extra="allow"``): a misspelt name would otherwise pass for a default.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, Optional, get_args

from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticSerializationError, SchemaError, to_jsonable_python
from typing_extensions import TypedDict

from reward_kit.agent.tools.parameters import EMPTY, INJECTED, FunctionParameters, Parameter, plain_json
from reward_kit.agent.tools.values import Check
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jsonschema.protocols import Validator


_INEXPRESSIBLE = (PydanticUserError, PydanticSerializationError, SchemaError, TypeError, NameError)
"""Errors of pydantic for a type that it cannot read, or whose values it cannot write as JSON."""


@dataclass(frozen=True, slots=True)
class ToolSignature:
    """The arguments of a tool.

    ``schema`` is their JSON schema, always an object. ``check`` turns the JSON text of an object into the
    arguments as the function takes them, or raises ``ArgumentError``. ``injected`` are those of ``db`` and
    ``rollout`` that the function takes, ``needed`` those of them without a default. ``untyped`` are
    parameters whose type is not given.
    """

    schema: Schema
    injected: frozenset[str]
    needed: frozenset[str]
    check: Callable[[str], dict[str, Any]]
    untyped: tuple[str, ...] = ()


def read_signature(
    function: Callable[..., Any],
    parameters: Mapping[str, Any] | None = None,
    descriptions: Mapping[str, str] | None = None,
    namespace: Mapping[str, Any] | None = None,
) -> ToolSignature:
    """The signature of a tool.

    ``parameters`` maps names to Python types, annotations or JSON schemas, or is itself the JSON schema of an
    object; ``descriptions`` come from the docstring; ``namespace`` holds local names for annotations. Raises
    ``BundleError`` if they do not fit the function or cannot be expressed in JSON.
    """
    if parameters is not None and not isinstance(parameters, Mapping):
        raise BundleError(
            f"parameters is {parameters!r}", remedy='Give a dict of names and types such as {"origin": str}.'
        )
    own = FunctionParameters(function)
    required = own.without_default()
    listed = parameters or {}
    untyped: tuple[str, ...] = ()
    if _is_object_schema(listed):
        properties = listed.get("properties", {})
        own.check_names(properties)
        absent = [name for name in required if name not in properties and name not in INJECTED]
        if absent:
            raise BundleError(f"parameters has no property for {absent[0]!r}, which the function needs")
        check = _of_schema(plain_json(listed), required, open_ended=own.keywords is not None)
    else:
        own.check_names(listed)
        offered = own.offered(parameters, descriptions or {}, namespace or {})
        check = _of_parameters(offered)
        untyped = tuple(p.name for p in offered if p.name not in listed and own.is_untyped(p.name))
    injected = INJECTED & own.named.keys()
    return ToolSignature(check.schema, injected, injected & set(required), check, untyped)


def _is_object_schema(parameters: Mapping[str, Any]) -> bool:
    """True if ``parameters`` is a JSON schema of all arguments, not a dict of names."""
    properties = parameters.get("properties", {})
    return (
        parameters.get("type") == "object"
        and isinstance(properties, Mapping)
        and all(isinstance(schema, Mapping) for schema in properties.values())
    )


def _of_schema(schema: Schema, required: Sequence[str], *, open_ended: bool) -> Check:
    """The check of arguments whose JSON schema was written by hand.

    ``required`` are names that the function needs. Unlisted names are refused unless it is ``open_ended``.
    """
    whole, definitions = inline_references(schema)
    properties = whole.pop("properties", {})
    needed = [name for name in required if name not in INJECTED]
    names = list(dict.fromkeys([*whole.pop("required", []), *needed]))
    closed = whole.get("additionalProperties", True) if open_ended else False
    complete = {**_object(properties, names, definitions), **whole, "additionalProperties": closed}
    return Check(complete, rules=compile_schema(complete), handwritten=frozenset(properties))


def _of_parameters(parameters: Sequence[Parameter]) -> Check:
    """The check of typed parameters; raises ``BundleError`` for a type that JSON cannot express."""
    types, whole = _types(parameters)
    whole, definitions = inline_references(whole)
    properties: Schema = {}
    for parameter in parameters:
        if parameter.schema is not None:
            try:
                schema, more = inline_references(parameter.schema, prefix=f"{parameter.name}_")
                compile_schema(parameter.schema)
            except BundleError as error:
                raise BundleError(f"parameters[{parameter.name!r}]: {error.fault}") from error
            definitions.update(more)
        elif parameter.name in whole["properties"]:
            schema = _with_default(parameter, whole["properties"][parameter.name])
        else:
            raise BundleError(
                f"parameter {parameter.name!r} has an alias", remedy="Give the parameter that name instead."
            )
        properties[parameter.name] = _described(parameter, schema)
    required = [parameter.name for parameter in parameters if parameter.required]
    handwritten = frozenset(parameter.name for parameter in parameters if parameter.schema is not None)
    ruled = {name: schema for name, schema in properties.items() if name in handwritten or is_closed(schema)}
    return Check(
        _object(properties, required, definitions),
        types,
        rules=compile_schema({"properties": ruled, "$defs": definitions}) if ruled else None,
        handwritten=handwritten,
    )


def _object(properties: Schema, required: Sequence[str], definitions: Schema) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return {**schema, "$defs": definitions} if definitions else schema


def _types(parameters: Sequence[Parameter]) -> tuple[TypeAdapter[dict[str, Any]], Schema]:
    """Pydantic's validator of all parameters, as an object without further names, and its JSON schema."""
    try:
        return _typed_dict(parameters)
    except _INEXPRESSIBLE as error:
        for parameter in parameters:  # the message names the one that pydantic cannot read
            try:
                _typed_dict([parameter])
            except _INEXPRESSIBLE as its_error:
                reason = str(its_error).splitlines()[0].split(". ")[0]
                raise BundleError(
                    f"the type of parameter {parameter.name!r} cannot be expressed in JSON ({reason})",
                    remedy="Only db and rollout are injected; give any other parameter a JSON type.",
                ) from error
        raise BundleError(str(error)) from error


def _typed_dict(parameters: Sequence[Parameter]) -> tuple[TypeAdapter[dict[str, Any]], Schema]:
    make: Any = TypedDict  # type checkers want the fields written out
    arguments = make("arguments", {parameter.name: _field(parameter) for parameter in parameters})
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")
    adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(arguments)
    return adapter, simplify(adapter.json_schema(schema_generator=ClosedObjects))


def _field(parameter: Parameter) -> Any:
    annotation = Any if parameter.schema is not None else parameter.annotation
    if parameter.default is None:
        annotation = Optional[annotation]  # noqa: UP045 - the other spelling fails for annotations that are strings
    return annotation if parameter.required else NotRequired[annotation]


def _with_default(parameter: Parameter, schema: Schema) -> Schema:
    """The schema made by pydantic, with the function's own default.

    ``null`` is accepted for a default of ``None``, but advertised only if the type was declared so.
    """
    if parameter.default is EMPTY:
        return schema
    rest = {key: value for key, value in schema.items() if key != "default"}
    if parameter.default is not None or type(None) in get_args(parameter.annotation):
        try:
            default = to_jsonable_python(parameter.default)
            json.dumps(default, allow_nan=False)
        except (PydanticSerializationError, ValueError):
            return rest
        return {**rest, "default": default}
    others = [one for one in rest.pop("anyOf", []) if one != {"type": "null"}]
    return {**others[0], **rest} if len(others) == 1 else {**rest, "anyOf": others} if others else rest


def _described(parameter: Parameter, schema: Schema) -> Schema:
    """The schema with the nearest description: its own or the annotation's, the docstring's, the type's."""
    if parameter.schema is not None and "description" in schema:
        return schema
    notes = [extra.description if isinstance(extra, FieldInfo) else extra for extra in parameter.extras]
    nearest = next((note for note in notes if note and isinstance(note, str)), None)
    description = nearest or parameter.description or schema.get("description")
    return {**schema, "description": description} if description else schema


# -- JSON schemas for strict providers

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
    """JSON schemas that close the objects of classes without an ``extra``."""

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
