"""Objects inside of arguments take no keys that they do not know, as the arguments themselves do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NotRequired

import pytest
from pydantic import BaseModel, ConfigDict
from typing_extensions import TypedDict

from reward_kit.agent.tools.arguments import ArgumentError
from reward_kit.agent.tools.schema import read_signature


class Line(BaseModel):
    product_id: int
    quantity: int = 1


class Tree(BaseModel):
    name: str
    line: Line | None = None
    children: list[Tree] = []


@dataclass
class Bag:
    weight: int = 1


class Seat(TypedDict):
    row: int
    line: NotRequired[Line]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    line: Line | None = None


class Careless(BaseModel):
    model_config = ConfigDict(extra="ignore")
    line: Line | None = None


def signature_of(annotation: Any) -> Any:
    def tool(value):
        pass

    return read_signature(tool, {"value": annotation})


def taken(annotation: Any, value: Any) -> Any:
    return signature_of(annotation).check(json.dumps({"value": value}))["value"]


MISSPELT = {"product_id": 1, "qty": 3}
CHILD = {"name": "b", "line": MISSPELT}
UNKNOWN = "is unknown (known: 'product_id', 'quantity')"


@pytest.mark.parametrize(
    ("annotation", "given", "problem"),
    [
        (Line, {"product_id": 1, "quantitty": 3}, "'value.quantitty' is unknown (did you mean 'quantity'?)"),
        (list[Line], [{"product_id": 1}, MISSPELT], f"'value[1].qty' {UNKNOWN}"),
        (Line | None, MISSPELT, f"'value.qty' {UNKNOWN}"),
        (Tree, {"name": "a", "children": [CHILD]}, f"'value.children[0].line.qty' {UNKNOWN}"),
        (Bag, {"wait": 1}, "'value.wait' is unknown (did you mean 'weight'?)"),
        (Seat, {"row": 1, "line": MISSPELT}, f"'value.line.qty' {UNKNOWN}"),
        (Open, {"more": 1, "line": MISSPELT}, f"'value.line.qty' {UNKNOWN}"),
    ],
)
def test_a_key_unknown_to_an_object_is_refused_with_path(annotation: Any, given: Any, problem: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        taken(annotation, given)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("annotation", "given", "value"),
    [
        (Open, {"more": 1}, Open(more=1)),
        (Careless, {"more": 1}, Careless()),
        (dict[str, Any], {"more": 1}, {"more": 1}),
        (Line | Bag, {"weight": 2}, Bag(2)),
        ({"type": "object", "properties": {"a": {}}}, {"more": 1}, {"more": 1}),
    ],
)
def test_what_the_author_said_of_other_keys_holds(annotation: Any, given: Any, value: Any) -> None:
    assert taken(annotation, given) == value
    schema = signature_of(annotation).schema["properties"]["value"]
    assert schema.get("additionalProperties") is not False


@pytest.mark.parametrize("annotation", [list[Line], Tree, Seat])
def test_strict_providers_read_that_objects_are_closed(annotation: Any) -> None:
    text = json.dumps(signature_of(annotation).schema)
    assert text.count('"additionalProperties": false') == text.count('"type": "object"') >= 2
