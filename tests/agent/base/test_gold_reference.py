"""Gold actions whose arguments come from the result of an earlier action."""

from typing import Any

import pytest

from reward_kit.agent.rows.field_checks import arguments_match, reference_faults, resolve_references
from reward_kit.errors import BundleError

BOOKED = '{"booking_id": "7F3A91C2", "seats": [{"row": 4}, {"row": 5}]}'


@pytest.mark.parametrize(
    ("reference", "value"),
    [
        ([0, "booking_id"], "7F3A91C2"),
        ([0, "seats", 1, "row"], 5),
        ([0, "seats"], [{"row": 4}, {"row": 5}]),
        ([0], BOOKED),
        ([1], "12345678"),
    ],
)
def test_a_reference_becomes_the_value_it_points_to(reference: list[Any], value: Any) -> None:
    assert resolve_references({"x": {"$result": reference}}, [BOOKED, "12345678"]) == {"x": value}


def test_references_are_found_anywhere_inside_the_arguments() -> None:
    row = {"$result": [0, "seats", 0, "row"]}
    arguments: Any = {"ids": [{"$result": [0, "booking_id"]}, "other"], "where": {"row": row}}
    assert resolve_references(arguments, [BOOKED]) == {"ids": ["7F3A91C2", "other"], "where": {"row": 4}}
    assert arguments["ids"][0] == {"$result": [0, "booking_id"]}


@pytest.mark.parametrize(
    ("reference", "result"),
    [([0, "booking_id"], "Error: this flight is full"), ([0, "seats", 7], BOOKED), ([0, "x"], "3")],
)
def test_a_reference_to_nothing_says_what_the_action_answered(reference: list[Any], result: str) -> None:
    with pytest.raises(BundleError) as caught:
        resolve_references({"x": {"$result": reference}}, [result])
    assert repr(result) in str(caught.value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ({"$result": [1, "id"]}, "begins with an earlier action's position (0 to 0), got 1"),
        ({"$result": ["id"]}, 'got "id"'),
        ({"$result": []}, "to be a list"),
        ({"$result": [0, 1.5]}, "object keys and array positions, got 1.5"),
        ({"$result": [0], "more": 1}, "has no other keys"),
    ],
)
def test_faulty_references_are_found_before_anything_runs(value: Any, expected: str) -> None:
    ((way, fault),) = reference_faults({"a": [value]}, 1)
    assert way == ("a", 0)
    assert expected in fault


@pytest.mark.parametrize(
    ("gold", "actual", "same"),
    [
        ({"id": {"$result": [0]}}, {"id": "anything"}, True),
        ({"id": {"$result": [0]}}, {}, False),
        ({"ids": [1, {"$result": [0]}]}, {"ids": [1, 2]}, True),
        ({"ids": [1]}, {"ids": [1, 2]}, False),
        ({"flag": True}, {"flag": 1}, False),
    ],
)
def test_gold_arguments_match_an_agents(gold: dict[str, Any], actual: dict[str, Any], same: bool) -> None:
    assert arguments_match(gold, actual) is same
