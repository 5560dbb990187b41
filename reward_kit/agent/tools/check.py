"""The check of a tool's arguments, built once from its parameters, with the JSON schema that says the same.

The schema says what the check accepts, so ``additionalProperties`` is false, also for objects inside; the
model layer takes the keyword out for providers that do not know it. JSON types are strict: ``"5"`` and
``true`` are no integers, ``5`` and ``5.0`` are. ``null`` is let through for a parameter whose default is
``None``.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional, get_args, get_origin

from pydantic import AfterValidator, ConfigDict, TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic_core import (
    PydanticCustomError,
    PydanticSerializationError,
    SchemaError,
    SchemaValidator,
    to_jsonable_python,
)
from typing_extensions import NotRequired, TypedDict

from reward_kit.agent.tools.arguments import ArgumentError, data_path, pydantic_problems, schema_problems
from reward_kit.agent.tools.closed_types import closed, json_schema_of, validator_of
from reward_kit.agent.tools.json_schema import Schema, compile_schema, inline_references, simplify
from reward_kit.agent.tools.own_code import runs_own_code
from reward_kit.agent.worker_thread import Pace
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jsonschema.protocols import Validator

_EMPTY = inspect.Parameter.empty
_INEXPRESSIBLE = (
    PydanticUserError,
    PydanticSerializationError,
    SchemaError,
    TypeError,
    NameError,
    RecursionError,
)
"""What pydantic raises over a type that it cannot read, or whose values it cannot write as JSON."""
_INTEGER_FAULTS = frozenset({"int_type", "int_from_float"})


@dataclass(frozen=True, slots=True)
class Check:
    """The JSON text of the arguments (an object) → the arguments as the function takes them.

    Raises ``ArgumentError``. One that ``runs_own_code``, validators of the bundle, may take any time.
    """

    read: Callable[[str], dict[str, Any]]
    runs_own_code: bool = False
    pace: Pace = field(default_factory=Pace, compare=False, repr=False)

    def __call__(self, text: str) -> dict[str, Any]:
        return self.read(text)


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
        """Whether its annotation brings a default (``Annotated[int, Field(default=3)]``)."""
        return any(isinstance(extra, FieldInfo) and not extra.is_required() for extra in self.extras)

    @property
    def extras(self) -> tuple[Any, ...]:
        """What ``Annotated`` adds to the type."""
        return get_args(self.annotation)[1:] if get_origin(self.annotation) is Annotated else ()

    @property
    def required(self) -> bool:
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
    arguments = _arguments(parameters)
    whole, definitions = inline_references(arguments.json_schema)
    definitions = {name: simplify(schema) for name, schema in definitions.items()}
    properties: Schema = {}
    for parameter in parameters:
        if parameter.schema is None:
            if parameter.name not in whole["properties"]:
                raise BundleError(
                    f"parameter {parameter.name!r} has an alias", remedy="Name the parameter so instead."
                )
            schema = _typed_property(parameter, simplify(whole["properties"][parameter.name]))
        else:
            schema, more = inline_references(parameter.schema, prefix=f"{parameter.name}_")
            definitions.update(more)
        properties[parameter.name] = _described(parameter, schema)
    required = [parameter.name for parameter in parameters if parameter.required]
    overruled = frozenset(p.name for p in parameters if p.filled and p.default is not _EMPTY)
    complete = _object_schema(properties, required, definitions)
    read = partial(_check_types, arguments.validator, complete, overruled)
    return complete, Check(read, runs_own_code(arguments.core_schema, harmless=_FitsSchema))


def check_by_schema(schema: Schema, required: Sequence[str], *, open_ended: bool) -> tuple[Schema, Check]:
    """Schema and check of arguments whose JSON schema was written by hand.

    ``required`` are the names that the function cannot do without; other names than the listed are refused
    unless it is ``open_ended``.
    """
    whole, definitions = inline_references(schema)
    names = list(dict.fromkeys([*whole.get("required", []), *required]))
    rest = {key: value for key, value in whole.items() if key not in ("type", "properties", "required")}
    rest["additionalProperties"] = rest.get("additionalProperties", True) if open_ended else False
    complete = {**_object_schema(whole.get("properties", {}), names, definitions), **rest}
    return complete, Check(partial(_check_schema, compile_schema(complete), complete))


class _Arguments(NamedTuple):
    """All parameters as pydantic knows them: an object that takes no others, nor do the objects in it."""

    core_schema: Any
    json_schema: Schema
    validator: SchemaValidator


def _arguments(parameters: Sequence[Parameter]) -> _Arguments:
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


def _typed_dict(fields: dict[str, Any]) -> _Arguments:
    make: Any = TypedDict  # type checkers want the fields written out
    arguments = make("arguments", fields)
    arguments.__pydantic_config__ = ConfigDict(extra="forbid")
    schema = closed(TypeAdapter(arguments).core_schema)
    return _Arguments(schema, json_schema_of(schema), validator_of(schema))


def _check_types(
    validator: SchemaValidator, schema: Schema, overruled: frozenset[str], text: str
) -> dict[str, Any]:
    try:
        # As JSON, because pydantic then takes dates, enums and sets in the form that JSON has for them, yet
        # is strict.
        values: dict[str, Any] = validator.validate_json(text, strict=True)
    except ValidationError as error:
        values = _check_again(validator, schema, json.loads(text), error)
    if overruled:
        given = json.loads(text)
        values = {name: value for name, value in values.items() if name in given or name not in overruled}
    return values


def _check_again(
    validator: SchemaValidator, schema: Schema, given: dict[str, Any], error: ValidationError
) -> dict[str, Any]:
    """The values once numbers such as ``5.0`` stand as integers where integers are wanted: JSON knows no
    difference.
    """
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
            values: dict[str, Any] = validator.validate_json(json.dumps(given), strict=True)
        except ValidationError as second:
            faults = second.errors(include_url=False)
        else:
            return values
    raise ArgumentError(pydantic_problems(faults, given, schema)) from error


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
    """The schema that pydantic made, with the function's own default."""
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
    """The type as it was declared; ``null`` is only let through, not advertised, where nobody has declared
    it.
    """
    alternatives = schema.get("anyOf")
    if keep or not isinstance(alternatives, list):
        return {**schema, "default": None} if keep else schema
    others = [alternative for alternative in alternatives if alternative != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf"}
    return {**others[0], **rest} if len(others) == 1 else {**rest, "anyOf": others}


def _described(parameter: Parameter, schema: Schema) -> Schema:
    """The description nearest to the parameter: in its schema or annotation, then in the docstring, then its
    type's.
    """
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
