"""What a person reads about the rows that changed, and what may be left out of a comparison."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reward_kit.agent.database import Database
from reward_kit.agent.database.changes import Changes, RowChange
from reward_kit.agent.database.database import Mode
from reward_kit.agent.database.seeding import seed_base

SEED = """
CREATE TABLE orders (order_id TEXT PRIMARY KEY, status TEXT, total REAL, updated_at TEXT);
CREATE TABLE order_items (order_id TEXT, item_id INTEGER, price REAL, PRIMARY KEY (order_id, item_id));
CREATE TABLE payments (id INTEGER PRIMARY KEY, order_id TEXT, amount);
CREATE TABLE log (entry TEXT);
INSERT INTO orders VALUES ('#W2611340', 'pending', 60.0, 'may'), ('#W7', 'delivered', 5.5, 'may');
INSERT INTO order_items VALUES ('#W2611340', 1, 1.5), ('#W2611340', 2, 2.5);
INSERT INTO payments VALUES (1, '#W2611340', 60);
INSERT INTO log VALUES ('start'), ('start');
"""

After = Callable[..., Changes]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seed_base(tmp_path_factory.mktemp("changes") / "base.db", SEED)


@pytest.fixture(scope="module")
def after(path: Path) -> After:
    """The changes that SQL makes on a fork."""

    def run(*statements: str) -> Changes:
        with Database.open(path) as base, base.fork() as fork:
            for sql in statements:
                fork.sync.execute(sql)
            return fork.changes()

    return run


PAID = "INSERT INTO payments VALUES (2, '#W7', 60"
CANCEL = "UPDATE orders SET status = 'cancelled' WHERE order_id = '#W2611340'"


def test_types_count(after: After) -> None:
    sixty = after("UPDATE payments SET amount = 60")
    assert not sixty
    for value in ("60.0", "'60'", "x'3630'"):
        assert len(after(f"UPDATE payments SET amount = {value}")) == 1
    assert after("UPDATE payments SET amount = 0.0") != after("UPDATE payments SET amount = -0.0")
    assert after("UPDATE payments SET amount = 0.0") != after("UPDATE payments SET amount = 0")
    assert after("UPDATE payments SET amount = 'a'") != after("UPDATE payments SET amount = x'61'")
    assert RowChange("t", "insert", None, None, {"a": 1}) != RowChange("t", "insert", None, None, {"a": 1.0})
    assert len({RowChange("t", "insert", None, None, {"a": value}) for value in (1, 1.0, 1, "1")}) == 3


@pytest.mark.parametrize(
    ("first", "second", "alike"),
    [
        ("UPDATE payments SET amount = 0.0", "UPDATE payments SET amount = -0.0", True),
        ("UPDATE payments SET amount = 60.0", "UPDATE payments SET amount = 60", True),  # 60: no change
        (
            "UPDATE payments SET amount = 9007199254740993",
            "UPDATE payments SET amount = 9007199254740992.0",
            False,
        ),
        ("INSERT INTO log VALUES ('[1, {\"a\": 2}]')", "INSERT INTO log VALUES ('[1.0,{\"a\":2.0}]')", True),
        ("INSERT INTO log VALUES ('[1, 2]')", "INSERT INTO log VALUES ('[2, 1]')", False),
        ("INSERT INTO log VALUES ('[true]')", "INSERT INTO log VALUES ('[1]')", False),
        ("INSERT INTO log VALUES ('12')", "INSERT INTO log VALUES ('12.0')", False),
        ("DELETE FROM log", "UPDATE log SET entry = '[1]'", False),
        (
            "CREATE TABLE k (a PRIMARY KEY, b) WITHOUT ROWID; INSERT INTO k VALUES (1, '{}')",
            "CREATE TABLE k (a PRIMARY KEY, b) WITHOUT ROWID; INSERT INTO k VALUES (1.0, '{ }')",
            True,
        ),
        (
            "CREATE TABLE k (a TEXT PRIMARY KEY); INSERT INTO k VALUES ('[1]'), ('[1.0]')",
            "CREATE TABLE k (a TEXT PRIMARY KEY); INSERT INTO k VALUES ('[1]')",
            False,
        ),
    ],
)
def test_equal_values_lead_to_equal_states_unless_exactness_is_asked_for(
    after: After, first: str, second: str, alike: bool
) -> None:
    one, other = after(*first.split(";")), after(*second.split(";"))
    assert one.equals(other) == other.equals(one) == alike
    assert one.equals(one)
    assert not one.equals(other, exact=True)
    assert one.describe(other, exact=True)
    assert bool(one.describe(other)) == bool(other.describe(one)) == (not alike)


def test_ignored_columns_and_tables_do_not_count(after: After) -> None:
    first = after(CANCEL, "UPDATE orders SET updated_at = 'june'", "INSERT INTO log VALUES ('one')")
    second = after(CANCEL, "UPDATE orders SET updated_at = 'july'", "INSERT INTO log VALUES ('two')")
    assert not first.equals(second)
    assert not first.equals(second, ignore={"orders.updated_at"})
    assert first.equals(second, ignore={"orders.updated_at", "log"})
    assert first.equals(second, ignore=["*.updated_at", "log.entry"])
    assert first.equals(second, ignore=("ORDERS.Updated_At", "LOG"))
    assert first.equals(after(CANCEL), ignore={"*.updated_at", "log"})
    assert not first.equals(after(), ignore={"*.updated_at", "log"})


def test_rows_whose_key_is_ignored_are_compared_by_their_content(after: After) -> None:
    first = after("INSERT INTO payments VALUES (7, '#W7', 1), (8, '#W7', 2)")
    second = after("INSERT INTO payments VALUES (9, '#W7', 2), (10, '#W7', 1)")
    assert not first.equals(second)
    assert first.equals(second, ignore={"payments.id"})
    assert not first.equals(after("INSERT INTO payments VALUES (7, '#W7', 1)"), ignore={"payments.id"})
    moved = after("UPDATE payments SET id = 55")
    assert moved
    assert moved.equals(after(), ignore={"payments.id"})


def test_an_update_is_of_one_row_also_if_its_key_is_ignored(after: After) -> None:
    wrong = after("UPDATE orders SET status = 'cancelled' WHERE order_id = '#W7'", "DELETE FROM payments")
    right = after(CANCEL, "DELETE FROM payments")
    assert not wrong.equals(right, ignore={"*.order_id"})
    assert len(wrong.describe(right, {"*.order_id"})) == 2
    assert right.equals(after("DELETE FROM payments", CANCEL), ignore={"*.order_id"})


def test_rows_without_a_key_are_counted(after: After) -> None:
    assert after("DELETE FROM log WHERE rowid = 1") == after("DELETE FROM log WHERE rowid = 2")
    assert after("DELETE FROM log WHERE rowid = 1") != after("DELETE FROM log")
    first, second = (after(f"UPDATE log SET entry = 'end' WHERE rowid = {number}") for number in (1, 2))
    assert first == second
    assert first.lines() == ["log: deleted (entry='start')", "log: inserted (entry='end')"]


def test_rows_that_go_by_cascade_and_by_trigger_are_changes_too(tmp_path: Path) -> None:
    seed = """
    PRAGMA foreign_keys = ON;
    CREATE TABLE users (id INTEGER PRIMARY KEY, name TEXT);
    CREATE TABLE orders (id INTEGER PRIMARY KEY, user INTEGER REFERENCES users ON DELETE CASCADE);
    CREATE TABLE audit (id INTEGER PRIMARY KEY, gone INTEGER);
    CREATE TRIGGER gone AFTER DELETE ON orders BEGIN INSERT INTO audit (gone) VALUES (OLD.id); END;
    INSERT INTO users VALUES (1, 'a'), (2, 'b');
    INSERT INTO orders VALUES (10, 1), (11, 1), (12, 2);
    """
    fork = Database.seed(tmp_path / "base.db", seed).fork()
    fork.sync.execute("DELETE FROM users WHERE id = 1")
    assert fork.changes().lines() == [
        "audit #1: inserted (id=1, gone=10)",
        "audit #2: inserted (id=2, gone=11)",
        "orders #10: deleted (id=10, user=1)",
        "orders #11: deleted (id=11, user=1)",
        "users #1: deleted (id=1, name='a')",
    ]


@pytest.mark.parametrize(
    ("actual", "expected", "lines"),
    [
        ([], [CANCEL], ["orders #W2611340 status: expected 'cancelled', got 'pending'"]),
        ([], [f"{PAID}.0)"], ["payments #2: missing row (id=2, order_id='#W7', amount=60.0)"]),
        ([f"{PAID})"], [f"{PAID}.0)"], []),
        ([f"{PAID}.5)"], [f"{PAID}.0)"], ["payments #2 amount: expected 60.0, got 60.5"]),
        (
            ["INSERT INTO payments VALUES (3, NULL, x'00ff')"],
            [],
            ["payments #3: unexpected row (id=3, order_id=NULL, amount=x'00ff')"],
        ),
        (
            ["DELETE FROM order_items WHERE item_id = 1"],
            ["DELETE FROM order_items WHERE item_id = 2"],
            [
                "order_items (order_id='#W2611340', item_id=1): deleted, expected to stay",
                "order_items (order_id='#W2611340', item_id=2): expected to be deleted, still there",
            ],
        ),
        (
            ["INSERT INTO log VALUES ('a'), ('a')"],
            ["INSERT INTO log VALUES ('b')", "DELETE FROM log WHERE rowid = 1"],
            [
                "log: expected to be deleted, still there: (entry='start')",
                "log: missing row (entry='b')",
                "log: unexpected row (entry='a')",
                "log: unexpected row (entry='a')",
            ],
        ),
        (
            ["CREATE TABLE new (a)"],
            ["CREATE INDEX q ON log (entry)"],
            [
                "schema: index q: missing row (type='index', name='q', sql='CREATE INDEX q ON log (entry)')",
                "schema: table new: unexpected row (type='table', name='new', sql='CREATE TABLE new (a)')",
            ],
        ),
    ],
)
def test_a_difference_is_told_row_by_row(after: After, actual: Any, expected: Any, lines: list[str]) -> None:
    assert after(*actual).describe(after(*expected)) == lines


def test_a_description_is_bounded(after: After) -> None:
    many = after(
        "WITH RECURSIVE n (i) AS (SELECT 10 UNION ALL SELECT i + 1 FROM n LIMIT 500) "
        "INSERT INTO payments SELECT i, hex(zeroblob(10000)), 1 FROM n"
    )
    lines = many.describe(after())
    assert len(lines) == 21
    assert lines[-1] == "... and 480 more"
    assert max(map(len, lines)) < 500
    assert many.describe(after(), limit=2)[-1] == "... and 498 more"


@pytest.mark.parametrize("mode", ["overlay", "file"])
async def test_a_fork_of_a_stored_state_counts_from_the_base(path: Path, tmp_path: Path, mode: Mode) -> None:
    with Database.open(path, mode=mode) as base, base.fork() as db:
        await db.execute(CANCEL)
        made = db.changes()
        stored = db.export(path.parent / tmp_path.name)
    with Database.open(stored, mode="overlay") as again, again.fork() as fork, fork.fork() as further:
        await further.execute("DELETE FROM payments")
        assert [row.table for row in further.changes()] == ["orders", "payments"]
        assert fork.changes() == again.changes() == made
        assert fork.equals(again)
        assert not further.equals(again)
