"""The input fields for the arguments of a tool, from its JSON schema."""

from __future__ import annotations

from typing import Any

import pytest

from reward_kit.agent.reports.pages.play_page import fields_of


@pytest.mark.parametrize(
    ("schema", "kind", "choices"),
    [
        ({"type": "string", "description": "A name."}, "text", ()),
        ({"type": "integer"}, "number", ()),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, "number", ()),
        ({"type": "string", "enum": ["a", "b"]}, "text", ("a", "b")),
        ({"enum": [1, "b"]}, "json", ("1", "b")),
        ({"type": "boolean"}, "json", ("true", "false")),
        ({"type": "array", "items": {"type": "string"}}, "json", ()),
        ({"anyOf": [{"type": "string"}, {"type": "object"}]}, "json", ()),
        ({"type": ["string", "null"]}, "json", ()),
        ({}, "json", ()),
    ],
)
def test_each_parameter_has_an_input(schema: dict[str, Any], kind: str, choices: tuple[str, ...]) -> None:
    tool = {"name": "x", "parameters": {"properties": {"one": schema}, "required": ["one"]}}
    (field,) = fields_of(tool)
    assert (field.name, field.kind, field.choices, field.is_required) == ("one", kind, choices, True)
    assert field.description == schema.get("description", "")


@pytest.mark.parametrize("parameters", [None, {}, [], {"properties": []}, {"properties": {"one": True}}])
def test_a_schema_without_properties_has_no_fields(parameters: Any) -> None:
    assert not fields_of({"name": "x", "parameters": parameters})
