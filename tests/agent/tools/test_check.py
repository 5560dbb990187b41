"""Arguments are checked strictly, arrive as the types that were asked for, and are refused in words."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import date
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from reward_kit.agent.tools.arguments import ArgumentError
from reward_kit.agent.tools.schema import ToolSignature, read_signature


class Cabin(Enum):
    ECONOMY = "economy"
    BUSINESS = "business"


class Passenger(BaseModel):
    """A traveller."""

    name: str
    title: str = "Ms"
    born: date | None = None


@dataclass
class Bag:
    weight: float
    labels: list[str] = field(default_factory=list)


class Seat(TypedDict):
    row: int
    letter: Literal["A", "B"]


def check(signature: ToolSignature, arguments: Any) -> dict[str, Any]:
    return signature.check(json.dumps(arguments))


def refusal(signature: ToolSignature, arguments: Any) -> str:
    with pytest.raises(ArgumentError) as caught:
        check(signature, arguments)
    return str(caught.value)


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
    ],
)
def test_values_arrive_as_the_type_that_was_asked_for(annotation: Any, given: Any, taken: Any) -> None:
    def tool(value):
        pass

    value = check(read_signature(tool, {"value": annotation}), {"value": given})["value"]

    assert value == taken
    assert type(value) is type(taken)


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
    ],
)
def test_what_does_not_fit_is_refused_in_words(annotation: Any, given: Any, problem: str) -> None:
    def tool(value):
        pass

    assert refusal(read_signature(tool, {"value": annotation}), {"value": given}) == problem


def test_all_faults_are_told_at_once_and_a_near_miss_is_recognised() -> None:
    def tool(flight_id: int, passenger: str):
        pass

    problems = refusal(read_signature(tool), {"flightid": 3}).split("; ")

    assert sorted(problems) == [
        "'flight_id' is missing",
        "'flightid' is unknown (did you mean 'flight_id'?)",
        "'passenger' is missing",
    ]
