from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

import pytest
from jsonschema import Draft202012Validator
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from reward_kit.agent.tools.schema import ToolSignature, read_signature
from reward_kit.agent.tools.values import ArgumentError
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from nowhere import Database


class Cabin(Enum):
    ECONOMY = "economy"
    BUSINESS = "business"


class Passenger(BaseModel):
    """A traveller."""

    name: str
    title: str = "Ms"
    born: date | None = None


class Line(BaseModel):
    product_id: int
    quantity: int = 1


class Tree(BaseModel):
    name: str
    line: Line | None = None
    children: list[Tree] = []


@dataclass
class Bag:
    weight: float
    labels: list[str] = field(default_factory=list)


class Seat(TypedDict):
    row: int
    letter: Literal["A", "B"]


class LinedSeat(Seat):
    line: NotRequired[Line]


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    line: Line | None = None


class Careless(BaseModel):
    model_config = ConfigDict(extra="ignore")


def check(signature: ToolSignature, arguments: Any) -> dict[str, Any]:
    return signature.check(json.dumps(arguments))


def refusal(signature: ToolSignature, arguments: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        check(signature, arguments)
    return str(caught.value)


def signature_of(annotation: Any) -> ToolSignature:
    def tool(value): ...

    return read_signature(tool, {"value": annotation})


def property_of(annotation: Any) -> dict[str, Any]:
    schema: dict[str, Any] = signature_of(annotation).schema["properties"]["value"]
    return schema


TEXT = {"type": "string"}


def closed(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    """The schema of an object with these properties alone."""
    given = {"properties": properties, "required": [*required]}
    return {"type": "object", **given, "additionalProperties": False}


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list, {"type": "array", "items": {}}),
        (Any, {}),
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Cabin, {"type": "string", "enum": ["economy", "business"]}),
        (int | None, {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
        (Annotated[int, Field(ge=1, description="x")], {"type": "integer", "minimum": 1, "description": "x"}),
        (Annotated[str, "Airport code"], {"type": "string", "description": "Airport code"}),
        (date, {"type": "string", "format": "date"}),
        (Bag, closed({"weight": {"type": "number"}, "labels": {"type": "array", "items": TEXT}}, "weight")),
        (Seat, closed({"row": {"type": "integer"}, "letter": {**TEXT, "enum": ["A", "B"]}}, "row", "letter")),
        ({"type": "integer", "minimum": 3}, {"type": "integer", "minimum": 3}),
    ],
)
def test_each_way_to_give_a_type(annotation: Any, schema: dict[str, Any]) -> None:
    assert property_of(annotation) == schema


def test_a_pydantic_model_is_written_out_in_place_and_keeps_a_field_named_title() -> None:
    schema = property_of(Passenger)
    assert schema["description"] == "A traveller."
    assert list(schema["properties"]) == ["name", "title", "born"]
    assert schema["properties"]["title"] == {"type": "string", "default": "Ms"}
    assert "$ref" not in json.dumps(schema)


def test_only_a_type_that_contains_itself_stays_a_reference() -> None:
    def plant(tree: Tree, again: Tree, other: Passenger) -> None: ...

    schema = read_signature(plant).schema
    assert schema["properties"]["tree"] == {"$ref": "#/$defs/Tree"}
    assert list(schema["$defs"]) == ["Tree"]
    Draft202012Validator(schema).validate(
        {"tree": {"name": "a", "children": [{"name": "b"}]}, "again": {"name": "c"}, "other": {"name": "d"}}
    )


def test_annotations_and_docstring_make_the_schema_without_parameters() -> None:
    def book(flight_id: int, seats: list[str], cabin: Literal["economy", "business"] = "economy", db=None):
        """Book seats.

        Args:
            flight_id: Which flight.
            seats: Such as 12A.
        """

    signature = read_signature(book, None, {"flight_id": "Which flight.", "seats": "Such as 12A."})

    assert signature.schema["properties"] == {
        "flight_id": {"type": "integer", "description": "Which flight."},
        "seats": {"type": "array", "items": {"type": "string"}, "description": "Such as 12A."},
        "cabin": {"type": "string", "enum": ["economy", "business"], "default": "economy"},
    }
    assert signature.schema["required"] == ["flight_id", "seats"]
    assert (signature.injected, signature.needed) == ({"db"}, frozenset())


def test_references_inside_a_hand_written_schema_are_resolved() -> None:
    def tool(flat, deep): ...

    code = {"$ref": "#/$defs/Code", "$defs": {"Code": {"type": "string", "maxLength": 3}}}
    next_node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}}
    node = {"$ref": "#/$defs/N", "$defs": {"N": next_node}}
    signature = read_signature(tool, {"flat": code, "deep": node})
    assert signature.schema["properties"]["flat"] == {"type": "string", "maxLength": 3}
    assert signature.schema["properties"]["deep"] == {"$ref": "#/$defs/deep_N"}
    Draft202012Validator(signature.schema).validate({"flat": "SFO", "deep": {"next": {"next": {}}}})
    wrong = {"flat": "SFO", "deep": {"next": {"next": 5}}}
    assert "'deep.next.next' must be of type" in refusal(signature, wrong)


def test_the_annotation_of_an_injected_parameter_is_never_evaluated() -> None:
    def tool(flight_id: int, db: Database): ...

    assert list(read_signature(tool).schema["properties"]) == ["flight_id"]


def test_defaults_make_parameters_optional_and_appear_in_the_schema() -> None:
    unwritable: Any = object()
    items = [1]

    def tool(a=5, b="x", c=True, d=1.5, e=Cabin.ECONOMY, f=unwritable, g: float = float("inf"), h=items): ...

    schema = read_signature(tool).schema

    assert schema["required"] == []
    assert schema["properties"] == {
        "a": {"type": "integer", "default": 5},
        "b": {"type": "string", "default": "x"},
        "c": {"type": "boolean", "default": True},
        "d": {"type": "number", "default": 1.5},
        "e": {"default": "economy"},
        "f": {},
        "g": {"type": "number"},
        "h": {"type": "array", "items": {}, "default": [1]},
    }


def test_a_default_of_none_lets_null_through_without_advertising_it() -> None:
    def tool(a: str = None, b: int | None = None, c=None): ...  # noqa: RUF013 - as users write it

    signature = read_signature(tool)
    assert signature.schema["properties"] == {
        "a": {"type": "string"},
        "b": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
        "c": {"type": "string"},
    }
    assert check(signature, {"a": None, "b": None, "c": None}) == {"a": None, "b": None, "c": None}
    assert check(signature, {}) == {}


def test_field_as_a_default_gives_default_and_limits() -> None:
    def tool(limit: int = Field(10, ge=1), page: Annotated[int, Field(default=1)] = 1): ...

    signature = read_signature(tool)
    assert signature.schema["properties"] == {
        "limit": {"type": "integer", "minimum": 1, "default": 10},
        "page": {"type": "integer", "default": 1},
    }
    assert check(signature, {}) == {"limit": 10, "page": 1}


def test_listed_parameters_hide_what_the_function_can_do_without() -> None:
    def tool(origin, dest, limit=10, verbose=False): ...

    schema = read_signature(tool, {"origin": str, "limit": int}).schema
    assert list(schema["properties"]) == ["origin", "limit", "dest"]
    assert schema["required"] == ["origin", "dest"]


def test_parameters_may_be_the_json_schema_of_an_object() -> None:
    def tool(origin, limit=10): ...

    given = {"type": "object", "properties": {"origin": {"type": "string"}, "limit": {"type": "integer"}}}
    signature = read_signature(tool, given)
    assert signature.schema == {**given, "required": ["origin"], "additionalProperties": False}
    assert given.keys() == {"type", "properties"}
    assert check(signature, {"origin": "SFO", "limit": 2.0}) == {"origin": "SFO", "limit": 2}
    assert sorted(refusal(signature, {"limit": "x", "other": 1}).split("; ")) == [
        '\'limit\' must be of type "integer", got "x" (string)',
        "'origin' is missing",
        "'other' is unknown (known: 'origin', 'limit')",
    ]


def test_what_parameters_lists_may_go_to_keyword_arguments_of_any_name() -> None:
    def tool(row: int, db, **others): ...

    signature = read_signature(tool, {"row": int, "letter": str})
    assert sorted(signature.schema["properties"]) == ["letter", "row"]
    assert signature.injected == {"db"}
    assert check(signature, {"row": 1, "letter": "A"}) == {"row": 1, "letter": "A"}
    assert refusal(signature, {"row": 1, "letter": "A", "seat": 1}).startswith("'seat' is unknown")


class Odd: ...


def positional(value, /): ...
def any_names(row: int, **others): ...
def method(self, value): ...
def odd(value: Odd): ...
def unknown(value: Nowhere): ...  # noqa: F821 - wrong on purpose
def plain(origin, limit=10, db=None): ...


@pytest.mark.parametrize(
    ("function", "parameters", "fault"),
    [
        (positional, None, "parameter 'value' cannot be given by name"),
        (any_names, None, "nothing says which arguments '**others' takes"),
        (method, None, "it is a method"),
        (odd, None, "the type of parameter 'value' cannot be expressed in JSON"),
        (unknown, None, "the annotation 'Nowhere' of parameter 'value' cannot be read"),
        (plain, {"origin": str, "db": str}, "parameters lists 'db', which is injected"),
        (plain, {"origin": {"type": "text"}}, "parameters['origin']: not a JSON schema"),
        (plain, {"origin": {"$ref": "https://example.com/x.json"}}, "does not name one of the schema's own"),
        (plain, {"type": "object", "properties": {"limit": {}}}, "parameters has no property for 'origin'"),
        (plain, {"type": "object", "properties": {"orgin": {}}}, "parameters lists 'orgin'"),
    ],
)
def test_a_tool_that_cannot_be_offered_is_a_bundle_error(
    function: Callable[..., Any], parameters: Mapping[str, Any] | None, fault: str
) -> None:
    with pytest.raises(BundleError) as caught:
        read_signature(function, parameters)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "given", "taken"),
    [
        (int, 5, 5),
        (int, 5.0, 5),
        (float, 5, 5.0),
        (list[int], [1, 2.0], [1, 2]),
        (Cabin, "economy", Cabin.ECONOMY),
        (date, "2024-05-01", date(2024, 5, 1)),
        (Passenger, {"name": "Alice"}, Passenger(name="Alice")),
        (Bag, {"weight": 20}, Bag(20.0)),
        (Seat, {"row": 12.0, "letter": "A"}, {"row": 12, "letter": "A"}),
        ({"type": "integer"}, 5.0, 5),
        ({"type": ["integer", "null"]}, 5.0, 5),
        ({"type": "array", "items": {"properties": {"n": {"type": "integer"}}}}, [{"n": 5.0}], [{"n": 5}]),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 5.0, 5),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 5.0}, {"a": 5}),
        ({"type": "number"}, 5.0, 5.0),
        ({"anyOf": [{"type": "number"}, {"type": "integer"}]}, 5.0, 5.0),
        ({"type": ["integer", "number"]}, 5.0, 5.0),
        ({"anyOf": [{"type": "number"}, {"items": {"type": "integer"}}]}, [5.0], [5]),
        ({"type": ["number", "object"], "properties": {"n": {"type": "integer"}}}, {"n": 5.0}, {"n": 5}),
        (int | float, 5.0, 5.0),
    ],
)
def test_values_arrive_as_the_type_that_was_asked_for(annotation: Any, given: Any, taken: Any) -> None:
    value = check(signature_of(annotation), {"value": given})["value"]
    assert repr(value) == repr(taken)


def test_a_whole_float_beside_one_that_becomes_an_int_stays_a_float() -> None:
    def tool(row: int, letter: int | float, passengers: list[int | str], seat: Any, bag): ...

    signature = read_signature(tool, {"row": int, "bag": {"type": "number"}})
    given = {"row": 1.0, "letter": 2.0, "passengers": [3.0, "a"], "seat": {"n": 4.0}, "bag": 5.0}
    taken = check(signature, given)
    assert {name: repr(taken[name]) for name in given} == {
        name: repr(value) for name, value in {**given, "row": 1, "passengers": [3, "a"]}.items()
    }


@pytest.mark.parametrize(
    ("annotation", "given", "taken"),
    [
        (Open, {"more": 1}, Open(more=1)),
        (Careless, {"more": 1}, Careless()),
        (dict[str, Any], {"more": 1}, {"more": 1}),
        (Line | Bag, {"weight": 2}, Bag(2)),
        ({"type": "object", "properties": {"a": {}}}, {"more": 1}, {"more": 1}),
    ],
)
def test_what_the_author_said_of_other_keys_holds(annotation: Any, given: Any, taken: Any) -> None:
    assert check(signature_of(annotation), {"value": given}) == {"value": taken}
    assert property_of(annotation).get("additionalProperties") is not False


@pytest.mark.parametrize("annotation", [list[Line], Tree, LinedSeat])
def test_strict_providers_read_that_objects_are_closed(annotation: Any) -> None:
    text = json.dumps(signature_of(annotation).schema)
    assert text.count('"additionalProperties": false') == text.count('"type": "object"') >= 2


MISSPELT = {"product_id": 1, "qty": 3}
UNKNOWN = "is unknown (known: 'product_id', 'quantity')"


@pytest.mark.parametrize(
    ("annotation", "given", "problem"),
    [
        (int, "5", "'value' should be a valid integer, got \"5\" (string)"),
        (int, True, "'value' should be a valid integer, got true (boolean)"),
        (int, 5.5, "'value' should be a valid integer, got 5.5 (number)"),
        (str, 5, "'value' should be a valid string, got 5 (number)"),
        (bool, 1, "'value' should be a valid boolean, got 1 (number)"),
        (Literal["a", "b"], "c", "'value' should be 'a' or 'b', got \"c\" (string)"),
        (Cabin, "first", "'value' should be 'economy' or 'business', got \"first\" (string)"),
        (Passenger, {"title": "Dr"}, "'value.name' is missing"),
        (Annotated[int, Field(ge=1)], 0, "'value' should be greater than or equal to 1, got 0 (number)"),
        ({"type": "string", "pattern": "^#W"}, "W1", '\'value\' must have pattern "^#W", got "W1" (string)'),
        ({"enum": ["a", "b"]}, "c", '\'value\' must be one of ["a", "b"], got "c" (string)'),
        ({"type": "object", "required": ["id"]}, {}, "'value.id' is missing"),
        (Line, {"product_id": 1, "quantitty": 3}, "'value.quantitty' is unknown (did you mean 'quantity'?)"),
        (list[Line], [{"product_id": 1}, MISSPELT], f"'value[1].qty' {UNKNOWN}"),
        (Line | None, MISSPELT, f"'value.qty' {UNKNOWN}"),
        (
            Tree,
            {"name": "a", "children": [{"name": "b", "line": MISSPELT}]},
            f"'value.children[0].line.qty' {UNKNOWN}",
        ),
        (Bag, {"weight": 1, "label": []}, "'value.label' is unknown (did you mean 'labels'?)"),
        (LinedSeat, {"row": 1, "letter": "A", "line": MISSPELT}, f"'value.line.qty' {UNKNOWN}"),
        (Open, {"more": 1, "line": MISSPELT}, f"'value.line.qty' {UNKNOWN}"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(annotation: Any, given: Any, problem: str) -> None:
    assert refusal(signature_of(annotation), {"value": given}) == problem


def test_all_faults_are_told_at_once_and_a_near_miss_is_recognised() -> None:
    def tool(flight_id: int, passenger: str): ...

    problems = refusal(read_signature(tool), {"flightid": 3}).split("; ")
    assert sorted(problems) == [
        "'flight_id' is missing",
        "'flightid' is unknown (did you mean 'flight_id'?)",
        "'passenger' is missing",
    ]
