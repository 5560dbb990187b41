"""The values in which two states of one base differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_kit.agent.database import Database
from reward_kit.agent.failures import RowDifference, row_differences
from reward_kit.agent.failures.rows import DifferingRows

SEED = """
CREATE TABLE orders(id TEXT PRIMARY KEY, status TEXT, total REAL);
CREATE TABLE notes(text TEXT, stamp BLOB);
INSERT INTO orders VALUES ('#W1', 'pending', 60), ('#W2', 'pending', 1.5), ('#W3', 'done', NULL);
INSERT INTO notes VALUES ('a', x'00'), ('a', x'00'), ('b', NULL);
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Database.seed(tmp_path_factory.mktemp("rows") / "base.db", SEED) as database:
        yield database


async def differences(base: Database, actual: str, expected: str) -> list[RowDifference]:
    with base.fork() as got, base.fork() as wanted:
        await run(got, actual)
        await run(wanted, expected)
        found = row_differences(got.changes(), wanted.changes())
        assert bool(found) == (not got.equals(wanted))
        return found


async def run(database: Database, script: str) -> None:
    for statement in filter(None, map(str.strip, script.split(";"))):
        await database.execute(statement)


@pytest.mark.parametrize(
    ("actual", "expected", "lines"),
    [
        ("", "", []),
        (
            "UPDATE orders SET status='lost' WHERE id='#W1'",
            "UPDATE orders SET status='cancelled' WHERE id='#W1'",
            ["orders #W1 status: expected 'cancelled', got 'lost'"],
        ),
        (
            "UPDATE orders SET total=60.5 WHERE id='#W1'",
            "UPDATE orders SET status='cancelled' WHERE id='#W1'",
            [
                "orders #W1 status: expected 'cancelled', got 'pending'",
                "orders #W1 total: expected 60.0, got 60.5",
            ],
        ),
        (
            "DELETE FROM orders WHERE id='#W2'",
            "",
            ["orders #W2: missing row (id='#W2', status='pending', total=1.5)"],
        ),
        (
            "INSERT INTO orders VALUES ('#W4', 'new', 1)",
            "DELETE FROM orders WHERE id='#W3'",
            [
                "orders #W3: unexpected row (id='#W3', status='done', total=None)",
                "orders #W4: unexpected row (id='#W4', status='new', total=1.0)",
            ],
        ),
        (
            "DELETE FROM notes WHERE text='b'",
            "INSERT INTO notes VALUES ('c', x'01')",
            [
                "notes: missing row (text='c', stamp={'$blob': '01'})",
                "notes: missing row (text='b', stamp=None)",
            ],
        ),
    ],
)
async def test_one_line_for_each_value_or_row(
    base: Database, actual: str, expected: str, lines: list[str]
) -> None:
    found = await differences(base, actual, expected)
    assert sorted(one.line() for one in found) == sorted(lines)
    json.dumps([one.to_json() for one in found])


statements = st.lists(
    st.sampled_from(
        [
            "UPDATE orders SET status='x' WHERE id='#W1'",
            "UPDATE orders SET status='pending' WHERE id='#W1'",
            "UPDATE orders SET total=60 WHERE id='#W2'",
            "DELETE FROM orders WHERE id='#W2'",
            "INSERT OR REPLACE INTO orders VALUES ('#W2', 'again', 2)",
            "INSERT OR REPLACE INTO orders VALUES ('#W9', 'new', NULL)",
            "DELETE FROM notes WHERE text='a'",
            "INSERT INTO notes VALUES ('a', x'00')",
            "UPDATE notes SET stamp=1 WHERE text='b'",
        ]
    ),
    max_size=4,
)


@given(statements, statements)
@settings(deadline=None, max_examples=60)
def test_there_are_differences_exactly_where_the_states_differ(
    folder: Path, actual: list[str], expected: list[str]
) -> None:
    import asyncio

    path = folder / "property.db"
    with Database.open(path) if path.exists() else Database.seed(path, SEED) as database:
        asyncio.run(differences(database, ";".join(actual), ";".join(expected)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("property")


def test_long_texts_are_cut_where_they_begin_to_differ() -> None:
    same = "s" * 1000
    shown = RowDifference("t", {"id": 1}, "a", same + "x" * 1000, same + "y").to_json()
    assert shown["got"] == "…" + "s" * 40 + "y"
    assert shown["expected"].startswith("…" + "s" * 40 + "x")
    assert len(shown["expected"]) <= 301
    whole = RowDifference("t", None, None, {"a": "x" * 1000}, None).to_json()
    assert len(whole["expected"]["a"]) == 300


@pytest.mark.parametrize(
    ("change", "touched"),
    [
        ({"table": "t", "key": {"id": 1}}, True),
        ({"table": "t", "key": {"id": 2}}, False),
        ({"table": "t"}, True),
        ({"table": "u", "key": {"id": 1}}, False),
    ],
)
def test_which_changes_touch_a_row(change: dict[str, Any], touched: bool) -> None:
    rows = DifferingRows([RowDifference("t", {"id": 1}, "a", 1, 2), RowDifference("v", None, None, {}, None)])
    assert rows.touched_by(change) is touched
    assert rows.touched_by({"table": "v", "key": {"id": 7}})
