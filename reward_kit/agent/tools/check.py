"""The check of a tool's arguments and the JSON schema that says the same, both built from its parameters.

JSON types are strict: ``"5"`` and ``true`` are not integers, ``5`` and ``5.0`` are. ``null`` is accepted for
a parameter whose default is ``None``. Unknown names are refused, also in objects inside unless their class
says otherwise (``extra="allow"``): a misspelt name would otherwise pass for a default.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Optional, get_args, get_origin

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import PydanticCustomError, PydanticSerializationError, SchemaError, to_jsonable_python
from typing_extensions import TypedDict

from reward_kit.agent.tools.arguments import (
    ArgumentError,
    data_path,
    pydantic_problems,
    schema_problems,
    unknown_names,
)
from reward_kit.agent.tools.json_schema import (
    Schema,
    compile_schema,
    inline_references,
    is_closed,
    simplify,
)
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jsonschema.protocols import Validator

Check = Callable[[str], dict[str, Any]]
"""JSON text of the arguments (an object) to the arguments as the function takes them, or ``ArgumentError``.
"""

_EMPTY = inspect.Parameter.empty
_INEXPRESSIBLE = (
    PydanticUserError,
    PydanticSerializationError,
    SchemaError,
    TypeError,
    NameError,
    RecursionError,
)
"""Errors of pydantic for a type that it cannot read, or whose values it cannot write as JSON."""
_INTEGER_FAULTS = frozenset({"int_type", "int_from_float"})


@dataclass(slots=True)
class Parameter:
    """One parameter: ``schema`` where it was given as a JSON schema, else ``annotation``."""

    name: str
    annotation: Any = _EMPTY
    schema: Schema | None = None
    default: Any = _EMPTY
    description: str | None = None

    @property
    def filled(self) -> bool:
        """True if its annotation has a default (``Annotated[int, Field(default=3)]``)."""
        return any(isinstance(extra, FieldInfo) and not extra.is_required() for extra in self.extras)

    @property
    def extras(self) -> tuple[Any, ...]:
        """The metadata that ``Annotated`` adds to the type."""
        return get_args(self.annotation)[1:] if get_origin(self.annotation) is Annotated else ()

    @property
    def required(self) -> bool:
        """True if nothing gives it a default."""
        return self.default is _EMPTY and not self.filled

    def field(self) -> Any:
        """The annotation for pydantic."""
        annotation = self.annotation
        if self.schema is not None:
            annotation = Annotated[Any, AfterValidator(_schema_validator(self.name, self.schema))]
        if self.default is None:
            annotation = Optional[annotation]  # noqa: UP045 - the other spelling fails for annotations that are strings
        return annotation if self.required else NotRequired[annotation]


def check_by_types(parameters: Sequence[Parameter]) -> tuple[Schema, Check]:
    """Schema and check of typed parameters; raises ``BundleError`` for a type that JSON cannot express."""
    adapter, whole = _adapter(parameters)
    whole, definitions = inline_references(whole)
    definitions = {name: simplify(schema) for name, schema in definitions.items()}
    properties: Schema = {}
    for parameter in parameters:
        if parameter.schema is None:
            if parameter.name not in whole["properties"]:
                raise BundleError(
                    f"parameter {parameter.name!r} has an alias",
                    remedy="Give the parameter that name instead.",
                )
            schema = _typed_property(parameter, simplify(whole["properties"][parameter.name]))
        else:
            schema, more = inline_references(parameter.schema, prefix=f"{parameter.name}_")
            definitions.update(more)
        properties[parameter.name] = _described(parameter, schema)
    required = [parameter.name for parameter in parameters if parameter.required]
    complete = _object_schema(properties, required, definitions)
    typed = {p.name: properties[p.name] for p in parameters if p.schema is None}
    closed = {"properties": typed, "$defs": definitions}
    check = _TypeCheck(
        adapter,
        complete,
        closed=closed if is_closed(closed) else None,
        overruled=frozenset(p.name for p in parameters if p.filled and p.default is not _EMPTY),
    )
    return complete, check


def check_by_schema(schema: Schema, required: Sequence[str], *, open_ended: bool) -> tuple[Schema, Check]:
    """Schema and check of arguments whose JSON schema was written by hand.

    ``required`` are names that the function needs. Unlisted names are refused unless it is ``open_ended``.
    """
    whole, definitions = inline_references(schema)
    names = list(dict.fromkeys([*whole.get("required", []), *required]))
    rest = {key: value for key, value in whole.items() if key not in ("type", "properties", "required")}
    rest["additionalProperties"] = rest.get("additionalProperties", True) if open_ended else False
    complete = {**_object_schema(whole.get("properties", {}), names, definitions), **rest}
    return complete, partial(_check_schema, compile_schema(complete), complete)


def _adapter(parameters: Sequence[Parameter]) -> tuple[TypeAdapter[dict[str, Any]], Schema]:
    """Pydantic's validator of all parameters, as an object without further names, and its JSON schema."""
    try:
        return _typed_dict({parameter.name: parameter.field() for parameter in parameters})
    except _INEXPRESSIBLE as error:
        for parameter in parameters:
            _refuse_inexpressible(parameter)
        raise BundleError(str(error)) from error


def _refuse_inexpressible(parameter: Parameter) -> None:
    """Raise for the parameter that pydantic cannot read, so that the message names it."""
    try:
        _typed_dict({parameter.name: parameter.field()})
    except _INEXPRESSIBLE as error:
        reason = str(error).splitlines()[0].split(". ")[0]
        raise BundleError(
            f"the type of parameter {parameter.name!r} cannot be expressed in JSON ({reason})",
            remedy="Only db and rollout are injected; give any other parameter a JSON type.",
        ) from error


def _typed_dict(fields: dict[str, Any]) -> tuple[TypeAdapter[dict[str, Any]], Schema]:
    make: Any = TypedDict  # type checkers want the fields written out
    arguments = make("arguments", fields)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")
    adapter: TypeAdapter[dict[str, Any]] = TypeAdapter(arguments)
    return adapter, adapter.json_schema(schema_generator=_ClosedObjects)


_REWRITING = frozenset({"function-before", "function-wrap", "function-plain"})


class _ClosedObjects(GenerateJsonSchema):
    """JSON schemas that close the objects of classes whose author has not said what becomes of unknown names.

    Classes with an ``__init__``, and those behind a validator that may rewrite its input, stay open.
    """

    _rewritten = 0

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """Pydantic's hook for a model; a root model is not an object."""
        result = super().model_schema(schema)
        is_open = schema.get("root_model") or schema.get("custom_init")
        return result if is_open else self._closed(schema, result, "model_config")

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        """Pydantic's hook for a dataclass."""
        return self._closed(schema, super().dataclass_schema(schema), "__pydantic_config__")

    def typed_dict_schema(self, schema: Any) -> JsonSchemaValue:
        """Pydantic's hook for a ``TypedDict``."""
        return self._closed(schema, super().typed_dict_schema(schema), "__pydantic_config__")

    def function_before_schema(self, schema: Any) -> JsonSchemaValue:
        """Pydantic's hook for a value with a validator that runs before its own check."""
        return self._rewriting(super().function_before_schema, schema)

    def function_wrap_schema(self, schema: Any) -> JsonSchemaValue:
        """Pydantic's hook for a value with a validator around its own check."""
        return self._rewriting(super().function_wrap_schema, schema)

    def _rewriting(self, generate: Callable[[Any], JsonSchemaValue], schema: Any) -> JsonSchemaValue:
        self._rewritten += 1
        try:
            return generate(schema)
        finally:
            self._rewritten -= 1

    def _closed(self, schema: Any, result: JsonSchemaValue, config: str) -> JsonSchemaValue:
        said = getattr(schema.get("cls"), config, {})
        rewritten = self._rewritten or schema.get("schema", {}).get("type") in _REWRITING
        if not rewritten and "extra" not in said and not said.get("populate_by_name"):
            result.setdefault("additionalProperties", False)
        return result


@dataclass(frozen=True, slots=True)
class _TypeCheck:
    """The check of typed parameters.

    ``closed`` is the schema that finds unknown names in objects, if there are objects. ``overruled`` are the
    names whose default in the annotation gives way to that of the function.
    """

    adapter: TypeAdapter[dict[str, Any]]
    schema: Schema
    closed: Schema | None
    overruled: frozenset[str]

    def __call__(self, text: str) -> dict[str, Any]:
        try:
            # As JSON: dates, enums and sets are then taken in their JSON form, and the check is strict all
            # the same.
            values = self.adapter.validate_json(text, strict=True)
        except ValidationError as error:
            values = self._with_whole_numbers(json.loads(text), error)
        if self.closed or self.overruled:
            given = json.loads(text)
            problems = self._unknown(given)
            if problems:
                raise ArgumentError(problems)
            if self.overruled:
                return {n: value for n, value in values.items() if n in given or n not in self.overruled}
        return values

    def _with_whole_numbers(self, given: dict[str, Any], error: ValidationError) -> dict[str, Any]:
        """The values once numbers such as ``5.0`` stand as integers, which JSON does not tell apart."""
        faults = error.errors(include_url=False)
        whole = [fault for fault in faults if fault["type"] in _INTEGER_FAULTS and _is_whole(fault["input"])]
        if whole:
            for fault in whole:
                *path, last = data_path(fault["loc"], given)
                holder: Any = given
                for step in path:
                    holder = holder[step]
                holder[last] = int(holder[last])
            try:
                return self.adapter.validate_json(json.dumps(given), strict=True)
            except ValidationError as second:
                faults = second.errors(include_url=False)
        problems = [*pydantic_problems(faults, given, self.schema), *self._unknown(given)]
        raise ArgumentError(list(dict.fromkeys(problems))) from error

    def _unknown(self, given: dict[str, Any]) -> list[str]:
        if self.closed is None:
            return []
        from jsonschema import Draft202012Validator

        try:
            return unknown_names(Draft202012Validator(self.closed), given)
        except RecursionError:
            return ["the arguments are nested too deeply"]


def _check_schema(validator: Validator, schema: Schema, text: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(text)
    try:
        problems = schema_problems(validator, values)
    except RecursionError as error:
        raise ArgumentError(["the arguments are nested too deeply"]) from error
    if problems:
        raise ArgumentError(problems)
    return {name: _integer(schema["properties"].get(name, {}), value) for name, value in values.items()}


def _schema_validator(name: str, schema: Schema) -> _FitsSchema:
    try:
        inline_references(schema)
        validator = compile_schema(schema)
    except BundleError as error:
        raise BundleError(f"parameters[{name!r}]: {error.fault}") from error
    return _FitsSchema(name, schema, validator)


@dataclass(frozen=True, slots=True, eq=False)  # typing hashes it, and a dict cannot be
class _FitsSchema:
    """The check of one parameter by its JSON schema, as a validator for pydantic."""

    name: str
    schema: Schema
    validator: Validator

    def __call__(self, value: Any) -> Any:
        problems = schema_problems(self.validator, value, inside=[self.name])
        if problems:
            raise PydanticCustomError("json_schema", "does not fit its JSON schema", {"problems": problems})
        return _integer(self.schema, value)


def _integer(schema: Schema, value: Any) -> Any:
    return int(value) if schema.get("type") == "integer" and _is_whole(value) else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, float) and value.is_integer()


def _typed_property(parameter: Parameter, schema: Schema) -> Schema:
    """The schema made by pydantic, with the function's own default."""
    if parameter.default is _EMPTY:
        return schema
    schema.pop("default", None)
    if parameter.default is None:
        return _without_null(schema, keep=type(None) in get_args(parameter.annotation))
    try:
        default = to_jsonable_python(parameter.default)
        json.dumps(default, allow_nan=False)
    except (PydanticSerializationError, ValueError):
        return schema
    return {**schema, "default": default}


def _without_null(schema: Schema, *, keep: bool) -> Schema:
    """The type as it was declared: ``null`` is accepted, but advertised only if it was declared."""
    alternatives = schema.get("anyOf")
    if keep or not isinstance(alternatives, list):
        return {**schema, "default": None} if keep else schema
    others = [alternative for alternative in alternatives if alternative != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**others[0], **rest} if len(others) == 1 else {**rest, "anyOf": others}


def _described(parameter: Parameter, schema: Schema) -> Schema:
    """The schema with the nearest description: its own or the annotation's, the docstring's, the type's."""
    if parameter.schema is not None and "description" in schema:
        return schema
    notes = [extra.description if isinstance(extra, FieldInfo) else extra for extra in parameter.extras]
    nearest = next((note for note in notes if note and isinstance(note, str)), None)
    description = nearest or parameter.description or schema.get("description")
    return {**schema, "description": description} if description else schema


def _object_schema(properties: Schema, required: Sequence[str], definitions: dict[str, Schema]) -> Schema:
    schema: Schema = {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
    return {**schema, "$defs": definitions} if definitions else schema
