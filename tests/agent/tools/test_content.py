from __future__ import annotations

import json
from collections import namedtuple
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from reward_kit.agent.database import Database
from reward_kit.agent.tools.values import MAX_CHARACTERS, content_of


class Colour(Enum):
    RED = "red"


@dataclass
class Seat:
    row: int
    taken: date


class Passenger(BaseModel):
    name: str
    born: date


Point = namedtuple("Point", "x y")


def test_a_text_is_handed_on_as_it_is() -> None:
    assert content_of('He said "hi"\n') == 'He said "hi"\n'
    assert content_of(StrEnum("Status", {"PAID": "paid"}).PAID) == "paid"
    assert content_of(Enum("Status", {"PAID": "paid"}, type=str).PAID) == "paid"


async def test_the_result_of_a_statement_is_its_rows_or_how_many_it_changed(tmp_path: Path) -> None:
    seed = "CREATE TABLE t (a); INSERT INTO t VALUES (1), (2)"
    with Database.seed(tmp_path / "base.db", seed) as base, base.fork() as db:
        assert content_of(await db.execute("SELECT a FROM t")) == '[{"a": 1}, {"a": 2}]'
        assert content_of(await db.execute("UPDATE t SET a = 3")) == '{"rowcount": 2}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        (float("nan"), "null"),
        ({"ok": True}, '{"ok": true}'),
        ((1, 2), "[1, 2]"),
        (date(2024, 5, 1), '"2024-05-01"'),
        (datetime(2024, 5, 1, 12, tzinfo=UTC), '"2024-05-01T12:00:00+00:00"'),
        (time(12, 30), '"12:30:00"'),
        (Decimal("19.90"), '"19.90"'),
        (Colour.RED, '"red"'),
        ({"b", "a", "c"}, '["a", "b", "c"]'),
        (b"text", '"text"'),
        (b"\xff\x00", '"/wA="'),
        (Seat(1, date(2024, 5, 1)), '{"row": 1, "taken": "2024-05-01"}'),
        (Passenger(name="Alice", born=date(1990, 1, 1)), '{"name": "Alice", "born": "1990-01-01"}'),
        (Point(1, 2), '{"x": 1, "y": 2}'),
        ({2: "a", None: "b", True: "c"}, '{"2": "a", "null": "b", "true": "c"}'),
        ({date(2024, 5, 1): "d"}, '{"2024-05-01": "d"}'),
    ],
)
def test_anything_else_becomes_json(value: Any, text: str) -> None:
    assert content_of(value) == text


def test_a_result_of_several_megabytes_is_cut_with_a_note() -> None:
    text = content_of("x" * (MAX_CHARACTERS + 1))
    assert len(text) < MAX_CHARACTERS + 100
    assert text.endswith("[cut: the first 1,000,000 of 1,000,001 characters]")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(json_values.filter(lambda value: not isinstance(value, str)))
def test_json_values_come_back_from_their_text(value: Any) -> None:
    assert json.loads(content_of(value)) == json.loads(json.dumps(value))


@given(st.text())
def test_every_content_is_valid_unicode(text: str) -> None:
    content_of(text).encode()
    content_of([text]).encode()


class Untold:
    """Its text is but where it lies in memory."""


@pytest.mark.parametrize("value", [Untold(), {"a": [Untold()]}, lambda: 0])
def test_what_has_no_text_of_its_own_is_a_fault_of_the_tool(value: Any) -> None:
    with pytest.raises(TypeError, match=r"a value of type \w+ is not JSON and has no text form"):
        content_of(value)
