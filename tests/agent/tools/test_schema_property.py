"""The schema that a model sees and the check of what it sends say the same, for any types and any values."""

from __future__ import annotations

import contextlib
import json
import typing
from typing import Any, Literal, NotRequired, Optional, Required, Union, get_args, get_origin

from hypothesis import event, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from thorough import often
from typing_extensions import TypedDict, is_typeddict

from reward_kit.agent.tools.schema import read_signature
from reward_kit.agent.tools.values import ArgumentError, read_arguments

NAMES = ["a", "b", "c"]

literals = st.lists(st.sampled_from(["x", "y", "z"]), min_size=1, max_size=3, unique=True).map(
    lambda words: Literal[tuple(words)]
)
simple_types = st.sampled_from([str, int, float, bool, list, dict, Any]) | literals


def typed_dicts(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    field = st.tuples(inner, st.booleans()).map(lambda pair: (Required if pair[1] else NotRequired)[pair[0]])
    fields = st.dictionaries(st.sampled_from(NAMES), field, min_size=1)
    return fields.map(lambda annotations: TypedDict("Record", annotations))


annotations = st.recursive(
    simple_types,
    lambda inner: (
        inner.map(lambda item: list[item])
        | inner.map(lambda item: dict[str, item])
        | inner.map(lambda item: Optional[item])  # noqa: UP045 - a spelling that tools use
        | st.tuples(inner, inner).map(lambda pair: Union[pair[0], pair[1]])  # noqa: UP007 - a spelling that tools use
        | typed_dicts(inner)
    ),
    max_leaves=5,
)

numbers = st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.just(5.0)
values = st.recursive(
    st.none() | st.booleans() | numbers | st.sampled_from(["x", "y", "z", "5", ""]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*NAMES, "d"]), inner, max_size=3)
    ),
    max_leaves=6,
)


PLAIN = {
    str: st.sampled_from(["x", "y", "5", ""]),
    int: st.integers(-(2**53), 2**53) | st.just(5.0),
    float: numbers,
    bool: st.booleans(),
    list: st.lists(values, max_size=3),
    dict: st.dictionaries(st.sampled_from(NAMES), values, max_size=3),
    Any: values,
    type(None): st.none(),
}


def fitting(annotation: Any) -> st.SearchStrategy[Any]:
    """Values of a type, now and then with something wrong inside."""
    origin, inside = get_origin(annotation), get_args(annotation)
    if annotation in PLAIN:
        right = PLAIN[annotation]
    elif is_typeddict(annotation):
        fields = {name: fitting(get_args(hint)[0]) for name, hint in annotation.__annotations__.items()}
        optional = {name: fields[name] for name in annotation.__optional_keys__}
        required = {name: fields[name] for name in annotation.__required_keys__}
        right = st.fixed_dictionaries(required, optional=optional)
    elif origin is Literal:
        right = st.sampled_from(inside)
    elif origin is Union:
        right = st.one_of(*map(fitting, inside))
    elif origin is list:
        right = st.lists(fitting(inside[0]), max_size=2)
    else:
        right = st.dictionaries(st.sampled_from(NAMES), fitting(inside[1]), max_size=2)
    return st.integers(0, 9).flatmap(lambda dice: values if dice == 9 else right)


@st.composite
def parameters_with_arguments(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    for forget in typing._cleanups:  # Optional[int | str] would be the Optional[str | int] of before
        forget()
    parameters = draw(st.dictionaries(st.sampled_from(NAMES), annotations, min_size=1))
    arguments = {name: draw(fitting(annotation)) for name, annotation in parameters.items()}
    changed = draw(st.sampled_from([*parameters, "d", *[""] * 20]))
    if changed in arguments:
        del arguments[changed]
    elif changed:
        arguments[changed] = 1
    return parameters, arguments


@settings(max_examples=often(400))
@given(parameters_with_arguments())
def test_the_check_accepts_exactly_what_the_schema_allows(case: Any) -> None:
    parameters, arguments = case

    def tool(**anything: Any) -> None: ...

    signature = read_signature(tool, parameters)
    Draft202012Validator.check_schema(signature.schema)
    allowed = Draft202012Validator(signature.schema).is_valid(arguments)
    event(f"allowed: {allowed}")
    try:
        taken = signature.check(json.dumps(arguments))
    except ArgumentError:
        assert not allowed
    else:
        assert allowed
        assert taken == arguments


@settings(max_examples=often(100))
@given(st.dictionaries(st.sampled_from(NAMES), annotations))
def test_every_schema_is_an_object_without_references(parameters: dict[str, Any]) -> None:
    def tool(**anything: Any) -> None: ...

    schema = read_signature(tool, parameters).schema
    assert schema["type"] == "object"
    assert list(schema["properties"]) == list(parameters)
    assert set(schema["required"]) == set(parameters)
    assert "$ref" not in json.dumps(schema)
    assert "title" not in json.dumps(schema)


BROKEN = ['{"a": NaN}', "[" * 100_000, '{"a":' * 100_000, '{"a": 1e999}']


@settings(max_examples=often(300))
@given(st.text() | st.binary() | values | st.sampled_from(BROKEN))
def test_reading_arguments_never_crashes(arguments: Any) -> None:
    with contextlib.suppress(ArgumentError):
        read, text = read_arguments(arguments)
        assert isinstance(read, dict)
        assert json.loads(text) == read
