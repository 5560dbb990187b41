"""``await db.…``: what ``async def`` tools hold."""

import datetime as dt
import gc
from decimal import Decimal
from typing import Any

import pytest

from reward_kit.agent.database import Database, Row
from reward_kit.agent.database.statement import row_type
from reward_kit.errors import DatabaseError

CLOSED = "^this database is closed$"


async def test_rows_work_as_tuples_by_name_and_as_dicts(db: Database) -> None:
    rows = await db.fetch_all("SELECT id, name, credit FROM customers ORDER BY id")
    assert rows[0] == (1, "Alice", 10.5)
    assert rows[0]["name"] == rows[0].name == rows[0][1] == "Alice"
    assert dict(rows[0]) == {"id": 1, "name": "Alice", "credit": 10.5} == rows[0]._mapping
    assert rows[0].keys() == ("id", "name", "credit")
    assert [name for _, name, _ in rows] == ["Alice", "Bob", "Çiğdem"]
    assert rows[2].get("credit", 7) is None
    assert rows[2].get("nothing", 7) == 7
    assert isinstance(rows[0], Row)
    assert repr(rows[0]) == "Row(id=1, name='Alice', credit=10.5)"


async def test_unknown_columns_name_the_known_ones(db: Database) -> None:
    row = await db.fetch_one("SELECT id, name FROM customers")
    with pytest.raises(KeyError, match="no column 'nmae'; there are: id, name"):
        row["nmae"]
    with pytest.raises(AttributeError, match="no column 'nmae'; there are: id, name"):
        row.nmae  # noqa: B018 - the access is the test


class Later:
    def __await__(self) -> Any:
        yield


@pytest.mark.parametrize(
    ("sql", "params", "message"),
    [
        ("SELECT :id", {}, ":?id|binding"),
        ("SELECT ?, ?", [1], "uses 2.* 1 supplied"),
        ("SELECT ?", [1, 2], "uses 1.* 2 supplied"),
        ("SELECT ?", "a", "parameters must be a dict or a list, not str"),
        ("SELECT :x", {"x": [1]}, "parameter :x is a list, which SQLite cannot store"),
        ("SELECT ?, ?", [1, Decimal("2.5")], "parameter number 2 is a Decimal"),
        ("SELECT :x", {"x": Later()}, "parameter :x is a Later, which SQLite cannot store. Await it."),
        ("SELECT ?", [1 << 70], "parameter number 1 does not fit into 64 bits"),
        ("SELECT :x", {"x": "\ud800"}, "surrogates not allowed"),
        ("SELECT 1; SELECT 2", None, "only one statement can be run at a time"),
        (
            "DELETE FROM orders; -- all\nDELETE FROM customers",
            None,
            "only one statement can be run at a time",
        ),
        *((empty, None, "holds no statement") for empty in ("", "  ", "-- nothing", ";")),
    ],
)
async def test_sql_is_one_statement_with_its_parameters(db: Any, sql: str, params: Any, message: str) -> None:
    for run in (db.fetch_val, db.execute):
        with pytest.raises(DatabaseError, match=message):
            await run(sql, params)
    assert await db.fetch_val("SELECT count(*) FROM orders") == 3


async def test_dates_and_booleans_are_stored_as_sqlite_understands_them(db: Database) -> None:
    moment = dt.datetime(2025, 5, 19, 9, 30, tzinfo=dt.UTC)
    row = await db.fetch_one(
        "SELECT :date, :moment, :time, :flag, date(:moment, '+1 day')",
        {"date": moment.date(), "moment": moment, "time": dt.time(9, 30), "flag": True},
    )
    assert row == ("2025-05-19", "2025-05-19 09:30:00+00:00", "09:30:00", 1, "2025-05-20")


async def test_fetch_one_and_fetch_val_of_nothing_are_none(db: Database) -> None:
    assert await db.fetch_one("SELECT * FROM customers WHERE id = 99") is None
    assert await db.fetch_val("SELECT id FROM customers WHERE id = 99") is None
    assert await db.fetch_all("SELECT id FROM customers WHERE id = 99") == []
    assert await db.fetch_val("DELETE FROM orders WHERE id = 'none'") is None


async def test_execute_tells_what_a_write_did(db: Database) -> None:
    updated = await db.execute("UPDATE orders SET total = total + 1 WHERE customer_id = 1")
    inserted = await db.execute("INSERT INTO customers(name) VALUES (:name)", {"name": "Dora"})
    returned = await db.execute("DELETE FROM orders WHERE customer_id = 1 RETURNING id, total")
    created = await db.execute("CREATE TABLE t(a)")
    read = await db.execute("SELECT id FROM customers ORDER BY id")
    assert (updated.rowcount, updated.rows) == (2, [])
    assert (inserted.rowcount, inserted.lastrowid) == (1, 4)
    assert sorted(returned.rows) == [("W1", 21.0), ("W2", 6.25)]
    assert created.rowcount == -1
    assert (read.rowcount, [row.id for row in read]) == (-1, [1, 2, 3, 4])


async def test_executemany_runs_for_each_set_of_parameters_from_any_iterable(db: Database) -> None:
    changed = await db.executemany(
        "INSERT INTO customers(name, credit) VALUES (:name, :credit)",
        ({"name": f"n{number}", "credit": number} for number in range(1200)),
    )
    assert changed == 1200
    assert await db.fetch_val("SELECT count(*) FROM customers") == 1203


async def test_executemany_keeps_all_or_nothing(db: Database) -> None:
    rows = [[f"n{number}"] for number in range(700)] + [["Alice"]]
    with pytest.raises(DatabaseError, match=r"UNIQUE constraint failed: customers\.name"):
        await db.executemany("INSERT INTO customers(name) VALUES (?)", rows)
    assert await db.fetch_val("SELECT count(*) FROM customers") == 3


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("SELEC 1", 'near "SELEC": syntax error'),
        ("SELECT * FROM nowhere", "no such table: nowhere"),
        ("INSERT INTO customers(name) VALUES ('Alice')", "UNIQUE constraint failed: customers.name"),
        ("INSERT INTO orders VALUES ('W9', 99, 'paid', 1, NULL)", "FOREIGN KEY constraint failed"),
        ("UPDATE orders SET status = 'lost'", "CHECK constraint failed: status IN ('pending', 'paid', 'c"),
    ],
)
async def test_errors_say_what_sqlite_says(db: Database, sql: str, message: str) -> None:
    with pytest.raises(DatabaseError) as caught:
        await db.execute(sql)
    assert str(caught.value).startswith(message)
    assert str(caught.value) == str(caught.value.__cause__)
    assert "Error" in type(caught.value.__cause__).__name__


async def test_a_null_character_in_the_sql_is_an_error_of_the_database(db: Database) -> None:
    with pytest.raises(DatabaseError, match="null character"):
        await db.execute("SELECT 1\x00")


async def test_bytes_and_unicode_go_in_and_out_unchanged(db: Database) -> None:
    values = [b"\x00\xff", "a\x00b", "🛫 ok", "", b"", -(1 << 63), (1 << 63) - 1, 1e308]
    assert await db.fetch_one("SELECT ?, ?, ?, ?, ?, ?, ?, ?", values) == tuple(values)


async def test_a_closed_database_says_so_and_closes_twice(db: Database) -> None:
    await db.fetch_val("SELECT 1")
    db.close()
    db.close()
    for use in (db.fetch_val("SELECT 1"), db.execute("DELETE FROM orders")):
        with pytest.raises(DatabaseError, match=CLOSED):
            await use
    with pytest.raises(DatabaseError, match=CLOSED):
        db.read_only().execute("SELECT 1")
    with pytest.raises(DatabaseError, match=CLOSED):
        async with db.tool_call():
            await db.fetch_val("SELECT 1")


async def test_a_base_can_be_read_but_not_written(base: Database) -> None:
    assert await base.fetch_val("SELECT count(*) FROM orders") == 3
    with pytest.raises(DatabaseError, match=r"only read: fork\(\) gives a private copy"):
        await base.execute("DELETE FROM orders")
    assert len(base.changes()) == 0
    with base.fork() as fork:
        assert await fork.fetch_val("SELECT count(*) FROM orders") == 3


def test_a_collection_of_garbage_loses_no_column() -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(1)
        rows = [row_type(tuple(f"c{place}" for place in range(n)))(range(n)) for n in range(50, 150)]
    finally:
        gc.set_threshold(*before)
    assert [row.c49 for row in rows] == [49] * 100
