"""Types whose objects take no keys that they do not know, as a tool's own arguments do.

Pydantic drops such keys from objects of models, dataclasses and ``TypedDict`` whose author said nothing of
them: a misspelt one would pass for a default. What an author says (``extra="allow"``, ``"ignore"``) holds,
and a model with an ``__init__`` of its own checks itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import SchemaValidator

from reward_kit.agent.tools.own_code import NAMED, UNREAD

_EXTRA = "extra_fields_behavior"


def closed(schema: Any) -> Any:
    """A copy of a schema that pydantic made of types, with all its objects closed."""
    if isinstance(schema, list | tuple):
        return type(schema)([closed(part) for part in schema])
    if not isinstance(schema, Mapping):
        return schema
    copied = {name: part if name in UNREAD else closed(part) for name, part in schema.items()}
    for name in NAMED:
        named = schema.get(name)
        if isinstance(named, Mapping):  # of which "config" may be one
            copied[name] = {key: closed(part) for key, part in named.items()}
    config = schema.get("config") or {}
    if _EXTRA in config or schema.get("root_model"):
        return copied
    if schema.get("type") in ("model", "dataclass"):
        copied["config"] = {**config, _EXTRA: "forbid"}
    elif schema.get("type") == "typed-dict" and schema.get("extra_behavior", "ignore") == "ignore":
        copied["extra_behavior"] = "forbid"  # newer releases of pydantic spell out what nobody has said
    return copied


def validator_of(schema: Any) -> SchemaValidator:
    """What checks values by a schema that is closed."""
    with _built_anew(schema):
        return SchemaValidator(schema)


@contextmanager
def _built_anew(schema: Any) -> Iterator[None]:
    """Since 2.11 pydantic puts the validator that a class has, an open one, in the place of its schema."""
    classes = [kind for kind in _classes(schema) if vars(kind).get("__pydantic_complete__")]
    for kind in classes:
        kind.__pydantic_complete__ = False
    try:
        yield
    finally:
        for kind in classes:
            kind.__pydantic_complete__ = True


def _classes(schema: Any) -> set[Any]:
    """The models and dataclasses in a schema."""
    if isinstance(schema, list | tuple):
        return {kind for part in schema for kind in _classes(part)}
    if not isinstance(schema, Mapping):
        return set()
    own = {schema["cls"]} if schema.get("type") in ("model", "dataclass") else set()
    return own.union(*(_classes(part) for part in schema.values()))


def json_schema_of(schema: Any) -> JsonSchemaValue:
    """The JSON schema that says of a closed schema that it is."""
    return _ClosedJsonSchema().generate(schema)


class _ClosedJsonSchema(GenerateJsonSchema):
    """Pydantic's own asks the classes, which do not know that they are closed here."""

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        return _told(schema, super().model_schema(schema))

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        return _told(schema, super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: Any) -> JsonSchemaValue:
        return _told(schema, super().typed_dict_schema(schema))


def _told(schema: Any, json_schema: JsonSchemaValue) -> JsonSchemaValue:
    if schema.get("extra_behavior", schema.get("config", {}).get(_EXTRA)) == "forbid":
        json_schema.setdefault("additionalProperties", False)
    return json_schema
