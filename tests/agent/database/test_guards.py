"""What statements may not do, and the schemas and queries that all the same work as anywhere."""

import sys
from pathlib import Path

import pytest
from shop_database import RUNAWAY

from reward_kit.agent.database import Database, Limits
from reward_kit.errors import DatabaseError, ReadOnlyError, TooManyRowsError


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("ATTACH ':memory:' AS other", "ATTACH is not allowed here"),
        ("COMMIT", "COMMIT is not allowed here: a tool call is one transaction"),
        ("VACUUM INTO '/tmp/stolen.db'", "VACUUM is not allowed here"),
        ("SELECT load_extension('x.so')", "load_extension"),
        ("PRAGMA writable_schema = ON", "PRAGMA writable_schema = ON is not allowed here"),
        ("EXPLAIN PRAGMA writable_schema = ON", "PRAGMA writable_schema = ON is not allowed here"),
        ("PRAGMA foreign_keys = OFF", "PRAGMA foreign_keys = OFF is not allowed here"),
        ("PRAGMA query_only(0)", "PRAGMA query_only = 0 is not allowed here"),
        ("CREATE VIRTUAL TABLE v USING csv(filename='/etc/passwd')", "a virtual table of the kind csv"),
    ],
)
async def test_reaching_out_or_switching_safety_off_is_refused(db: Database, sql: str, message: str) -> None:
    with pytest.raises(DatabaseError, match=message.replace("(", r"\(")):
        await db.execute(sql)
    async with db.tool_call():
        with pytest.raises(DatabaseError):
            await db.execute(sql)
        assert await db.fetch_val("SELECT count(*) FROM orders") == 3


@pytest.mark.parametrize(
    "sql",
    [
        "PRAGMA table_info(orders)",
        "PRAGMA integrity_check",
        "PRAGMA user_version",
        "SELECT name FROM pragma_table_info('orders')",
        "SELECT sql FROM sqlite_master",
        "EXPLAIN QUERY PLAN SELECT * FROM orders",
        "SELECT value FROM json_each('[1, 2]')",
        "WITH x AS (SELECT 1) SELECT * FROM x",
    ],
)
async def test_looking_around_is_allowed_for_tools_and_rewards(db: Database, sql: str) -> None:
    rows = await db.fetch_all(sql)
    assert rows
    assert db.read_only().execute(sql).all() == rows


@pytest.mark.parametrize("tail", [";\n-- the lowest first", "; /* é */ ", ";;"])
async def test_a_comment_may_follow_a_statement(db: Database, tail: str) -> None:
    for _ in range(2):
        assert len(await db.fetch_all(f"SELECT id FROM orders{tail}")) == 3
        assert (await db.execute(f"UPDATE customers SET credit = 2{tail}")).rowcount == 3


async def test_foreign_keys_are_on_in_forks_if_the_seed_switched_them_on(db: Database) -> None:
    assert await db.fetch_val("PRAGMA foreign_keys") == 1
    async with db.tool_call():
        await db.execute("PRAGMA defer_foreign_keys = ON")
        await db.execute("DELETE FROM customers WHERE id = 1")
        await db.execute("INSERT INTO customers(id, name) VALUES (1, 'Alicia')")


async def test_too_many_rows_are_an_error_without_being_kept_in_memory(tmp_path: Path, mode: str) -> None:
    endless = RUNAWAY.replace("count(*)", "x")
    limits = Limits(max_rows=100)
    with Database.seed(tmp_path / "b.db", "", mode=mode, limits=limits) as base, base.fork() as db:
        for query in (endless, "SELECT value FROM json_each('[" + "0," * 100 + "0]')"):
            with pytest.raises(TooManyRowsError, match="more than 100 rows"):
                await db.fetch_all(query)
            with pytest.raises(TooManyRowsError):
                db.read_only().execute(query)
        assert len(await db.fetch_all(f"{endless} LIMIT 100")) == 100
        assert await db.fetch_val(endless) == 1  # the first row is all that is fetched of it


async def test_values_and_statements_have_a_largest_size(db: Database) -> None:
    if db.mode == "overlay" or sys.version_info >= (3, 11):  # sqlite3 cannot set limits before
        for sql in ("SELECT zeroblob(100000000)", "SELECT randomblob(100000000)"):
            with pytest.raises(DatabaseError, match="too big"):
                await db.fetch_val(sql)
        with pytest.raises(DatabaseError, match="pattern too complex"):
            await db.fetch_val("SELECT 'a' LIKE ?", ["%a" * 600])
    with pytest.raises(DatabaseError, match=r"too large|too big"):
        await db.fetch_val(f"SELECT '{'a' * (1 << 20)}'")
    assert await db.fetch_val("SELECT length(zeroblob(50000000))") == 50_000_000


ORDINARY_SCHEMA = """
CREATE TABLE bookings(
    id TEXT PRIMARY KEY DEFAULT (hex(randomblob(4))),
    seat INTEGER DEFAULT (abs(random() % 100)),
    made TEXT DEFAULT CURRENT_TIMESTAMP,
    day TEXT DEFAULT (date('now')),
    departs TEXT CHECK (date(departs) IS NOT NULL),
    month TEXT GENERATED ALWAYS AS (strftime('%Y-%m', departs)) STORED,
    week TEXT AS (date(departs, 'weekday 0'))
);
CREATE INDEX by_day ON bookings(date(departs));
CREATE INDEX spring ON bookings(month) WHERE date(departs) < '2025-06-01';
CREATE TABLE log(at TEXT, what TEXT, tag TEXT);
CREATE TRIGGER booked AFTER INSERT ON bookings BEGIN
    INSERT INTO log VALUES (datetime('now'), new.id, hex(randomblob(2)));
END;
CREATE VIEW lately AS SELECT id, julianday('now') - julianday(made) AS age, random() AS r FROM bookings;
INSERT INTO bookings(departs) VALUES ('2025-05-19 07:00'), ('2025-07-01 08:00');
"""


@pytest.mark.parametrize("given", [{}, {"seed": 1}, {"seed": 1, "now": "2025-05-19T09:00:00Z"}])
async def test_schemas_may_call_random_and_date_functions(tmp_path: Path, mode: str, given: dict) -> None:
    with Database.seed(tmp_path / "b.db", ORDINARY_SCHEMA, mode=mode) as base, base.fork(**given) as db:
        async with db.tool_call():
            await db.execute("INSERT INTO bookings(departs) VALUES ('2025-05-20 10:00')")
        query = "SELECT * FROM bookings WHERE date(departs) = '2025-05-20'"
        row = await db.fetch_one(query)
        plan = await db.fetch_all(f"EXPLAIN QUERY PLAN {query}")

        assert (row.month, row.week) == ("2025-05", "2025-05-25")
        assert len(row.id) == 8
        assert 0 <= row.seat < 100
        assert "by_day" in plan[0].detail
        assert await db.fetch_val("SELECT count(*) FROM lately WHERE r IS NOT NULL AND age IS NOT NULL") == 3
        assert await db.fetch_val("SELECT count(*) FROM log") == 3
        assert await db.fetch_val("PRAGMA integrity_check") == "ok"
        with pytest.raises(DatabaseError, match="CHECK constraint failed"):
            await db.execute("INSERT INTO bookings(departs) VALUES ('tomorrow')")
        if "now" in given:
            assert (row.made, row.day) == ("2025-05-19 09:00:00", "2025-05-19")


async def test_rewards_cannot_write_in_any_way(db: Database) -> None:
    writes = [
        "DELETE FROM orders",
        "INSERT INTO customers(name) VALUES ('x') RETURNING id",
        "WITH x AS (SELECT 1) UPDATE orders SET total = 0",
        "CREATE TABLE t(a)",
        "CREATE TEMP TABLE t(a)",
        "REINDEX",
        "ANALYZE",
        "DROP TABLE orders",
    ]
    for sql in writes:
        with pytest.raises(ReadOnlyError, match="the database is read-only here"):
            db.read_only().execute(sql)
        with pytest.raises(ReadOnlyError, match="the database is read-only here"):
            await db.read_only_async().execute(sql)
    with pytest.raises(ReadOnlyError):
        await db.read_only_async().executemany("INSERT INTO customers(name) VALUES (?)", [["x"]])

    assert len(db.changes()) == 0
    await db.execute("DELETE FROM orders")  # the view has left the database itself writable
    assert db.read_only().execute("SELECT count(*) FROM orders").scalar_one() == 0
