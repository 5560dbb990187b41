"""Equality by value: of numbers, of JSON values and of the texts of these."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_kit.agent.base.encoding import equal_values

numbers = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
few_numbers = st.sampled_from([0, 1, 2, 0.0, -0.0, 1.0, 0.5, 2**53, 2**53 + 1, float(2**53)])
plain_texts = st.sampled_from(["", "a", "1", "1.0", "007", "1e5", "true", "{", "[1", "{1: 2}"])
leaves = st.none() | st.booleans() | plain_texts


def values_of(numbers: st.SearchStrategy[Any], size: int = 4) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves | numbers,
        lambda inner: st.lists(inner, max_size=size) | st.dictionaries(plain_texts, inner, max_size=size),
        max_leaves=8,
    )


def alike(one: Any, other: Any) -> bool:
    """Equality as the documentation says it."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def respelled(value: Any) -> Any:
    """Another spelling of the same value: 12.0 for 12 and the reverse, keys the other way round."""
    if isinstance(value, dict):
        return {key: respelled(value[key]) for key in reversed(value)}
    if isinstance(value, list):
        return list(map(respelled, value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        other = int(value) if isinstance(value, float) and value.is_integer() else float(value)
        return other if other == value else value
    return value


@given(values_of(numbers))
def test_values_equal_their_other_spellings_at_every_depth_and_as_text(value: Any) -> None:
    other = respelled(value)
    assert equal_values(value, value)
    assert equal_values(value, other)
    assert equal_values(other, value)
    if isinstance(value, dict | list):
        text, other_text = json.dumps(value, indent=1), json.dumps(other, ensure_ascii=False)
        assert equal_values(text, other_text)
        assert equal_values({"inside": [text]}, {"inside": [other_text]})
        assert not equal_values(text, value)


@given(values_of(few_numbers, 2), values_of(few_numbers, 2))
def test_other_values_differ(one: Any, other: Any) -> None:
    assert equal_values(one, other) == equal_values(other, one) == alike(one, other)
    assert equal_values(json.dumps([one]), json.dumps([other])) == alike(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("12", "12.0"),
        ("007", "7"),
        ("1e5", "100000"),
        (12, "12"),
        ('{"a": 1, "a": 2}', '{"a": 2}'),
        ("[NaN]", "[NaN ]"),
        ("[1e999]", "[2e999]"),
        ("[" * 200 + "]" * 200, "[" * 200 + " " + "]" * 200),
        ("[9007199254740993]", "[9007199254740992.0]"),
        (b"[1]", b"[1.0]"),
    ],
)
def test_texts_that_are_no_json_object_or_array_are_texts(one: Any, other: Any) -> None:
    assert not equal_values(one, other)
