"""Forks of one base take turns at its connections, and none notices the others."""

from __future__ import annotations

import asyncio
import gc
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from database_workloads import SEED, TABLES, schema_statements, statement, statements
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reward_kit.agent.database import Database
from reward_kit.agent.database.connection_pool import MOST_IDLE
from reward_kit.errors import DatabaseError

SHOP = """
CREATE TABLE stock (id INTEGER PRIMARY KEY, quantity INTEGER);
INSERT INTO stock VALUES (1, 10), (2, 20);
"""
WHAT_SQLITE_REMEMBERS = "SELECT last_insert_rowid(), changes(), total_changes()"

blocks = st.tuples(
    st.integers(0, 2),
    st.booleans(),
    st.lists(statement(statements + schema_statements + [(WHAT_SQLITE_REMEMBERS, ())] * 3), max_size=3),
)


@pytest.fixture
def base(tmp_path: Path) -> Database:
    gc.collect()  # so that no connection of an earlier test is closed while this one counts
    return Database.seed(tmp_path / "base.db", SHOP)


def run_block(db: Database, in_transaction: bool, block: list[tuple[str, list[Any]]]) -> list[Any]:
    """What the statements of ``block`` answer; errors are answers."""
    sync = db.sync
    answers: list[Any] = []

    def answer(sql: str, parameters: list[Any]) -> Any:
        try:
            return sync.fetch_all(sql, parameters)
        except DatabaseError as error:
            return str(error)

    def run() -> None:
        answers.extend(answer(*one) for one in block)

    if not in_transaction:
        run()
        return answers
    with suppress(DatabaseError), sync.transaction():
        run()
    return answers


def content(db: Database) -> dict[str, Any]:
    found: dict[str, Any] = {"changes": db.changes().to_json()}
    for table in [*TABLES.split(), "made", "sqlite_master"]:
        with suppress(DatabaseError):
            found[table] = [repr(row) for row in db.sync.fetch_all(f"SELECT * FROM {table} ORDER BY 1, 2")]
    return found


def test_what_a_fork_does_and_sees_does_not_depend_on_the_others(tmp_path: Path) -> None:
    shared = Database.seed(tmp_path / "shared.db", SEED)

    @settings(deadline=None, max_examples=120, suppress_health_check=list(HealthCheck))
    @given(st.lists(blocks, max_size=9))
    def check(plan: list[tuple[int, bool, list[Any]]]) -> None:
        together = [shared.fork(seed=number) for number in range(3)]
        found: list[list[Any]] = [[], [], []]
        for fork, in_transaction, block in plan:
            found[fork].append(run_block(together[fork], in_transaction, block))
        for number, fork in enumerate(together):
            alone_path = tmp_path / "alone.db"
            shutil.copyfile(tmp_path / "shared.db", alone_path)
            with Database.open(alone_path) as base, base.fork(seed=number) as alone:
                expected = [run_block(alone, how, block) for which, how, block in plan if which == number]
                assert found[number] == expected
                assert content(fork) == content(alone)
            alone_path.unlink()
            fork.close()

    check()


def test_forks_that_are_asked_in_turn_share_a_connection(base: Database) -> None:
    before = len(apsw.connections())
    forks = [base.fork() for _ in range(40)]
    for quantity, fork in enumerate(forks):
        with fork.sync.transaction():
            fork.sync.execute("UPDATE stock SET quantity = ? WHERE id = 1", [quantity])
    found = [fork.sync.fetch_val("SELECT quantity FROM stock WHERE id = 1") for fork in forks]
    assert found == list(range(40))
    assert len(apsw.connections()) - before == 1


def test_a_fork_that_waits_holds_the_pages_that_it_changed_and_no_marks_of_its_commits(
    base: Database, tmp_path: Path
) -> None:
    forks = [base.fork() for _ in range(3)]
    for quantity in range(1, 4):  # each commit counts one up on the first page
        for fork in forks:
            with fork.sync.transaction():
                fork.sync.execute("UPDATE stock SET quantity = ? WHERE id = 1", [quantity])
    for fork in forks:
        saved = fork.save(tmp_path / "saved.db", keep="full")
        changed = {
            number
            for number, (page, before) in enumerate(
                zip(pages_of(saved), pages_of(tmp_path / "base.db"), strict=True), start=1
            )
            if page != before
        }
        assert changed == {2}, "the table has one page; the first holds the schema"
        with closing(sqlite3.connect(saved)) as plain:
            assert plain.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            plain.execute("INSERT INTO stock VALUES (9, 90)")
            plain.commit()
            assert plain.execute("SELECT * FROM stock").fetchall() == [(1, 3), (2, 20), (9, 90)]


def pages_of(path: Path) -> list[bytes]:
    content = path.read_bytes()
    size = int.from_bytes(content[16:18], "big")
    return [content[start : start + size] for start in range(0, len(content), size)]


async def test_a_fork_written_to_outside_of_calls_keeps_its_connection_to_the_next_call(
    base: Database,
) -> None:
    before = len(apsw.connections())
    one, other = base.fork(), base.fork()
    await one.execute("UPDATE stock SET quantity = 1 WHERE id = 1")
    await other.execute("UPDATE stock SET quantity = 2 WHERE id = 1")
    assert len(apsw.connections()) - before == 2
    async with one.tool_call() as call:
        await one.execute("UPDATE stock SET quantity = 3 WHERE id = 2")
    assert [change.key for change in call.changes] == [{"id": 2}]
    assert [change.key for change in one.changes()] == [{"id": 1}, {"id": 2}]
    third = base.fork()
    assert await third.fetch_val("SELECT sum(quantity) FROM stock") == 30
    assert len(apsw.connections()) - before == 2
    other.close()
    assert await third.fetch_val("SELECT sum(quantity) FROM stock") == 30


async def test_calls_under_way_at_once_have_a_connection_each_and_few_of_them_stay(base: Database) -> None:
    before = len(apsw.connections())
    forks = [base.fork() for _ in range(3 * MOST_IDLE)]
    all_in = asyncio.Barrier(len(forks)) if hasattr(asyncio, "Barrier") else None
    under_way = []

    async def call(number: int, fork: Database) -> None:
        async with fork.tool_call():
            await fork.execute("UPDATE stock SET quantity = ? WHERE id = 2", [number])
            if all_in is not None:
                await all_in.wait()
            else:
                await asyncio.sleep(0.05)
            under_way.append(len(apsw.connections()) - before)
            assert await fork.fetch_val("SELECT quantity FROM stock WHERE id = 2") == number

    await asyncio.gather(*(call(number, fork) for number, fork in enumerate(forks)))
    assert under_way[0] == len(forks)
    assert len(apsw.connections()) - before == MOST_IDLE


def test_the_connections_go_with_the_base(tmp_path: Path) -> None:
    gc.collect()
    before = len(apsw.connections())
    base = Database.seed(tmp_path / "base.db", SHOP)
    with base.fork() as fork:
        fork.sync.execute("DELETE FROM stock")
    base.close()
    assert len(apsw.connections()) > before
    del base, fork
    gc.collect()
    assert len(apsw.connections()) == before


def test_a_fork_with_a_schema_of_its_own_keeps_its_connection(base: Database) -> None:
    one, other = base.fork(), base.fork()
    one.sync.execute("CREATE TABLE extra (id INTEGER PRIMARY KEY)")
    other.sync.execute("CREATE TABLE extra (name TEXT PRIMARY KEY)")
    one.sync.execute("INSERT INTO extra VALUES (7)")
    other.sync.execute("INSERT INTO extra VALUES ('seven')")
    child = one.fork()
    child.sync.execute("INSERT INTO extra VALUES (8)")
    assert one.sync.fetch_all("SELECT * FROM extra") == [(7,)]
    assert other.sync.fetch_all("SELECT * FROM extra") == [("seven",)]
    assert child.sync.fetch_all("SELECT * FROM extra") == [(7,), (8,)]
    with pytest.raises(DatabaseError, match="no such table"):
        base.fork().sync.fetch_all("SELECT * FROM extra")
    inserted = {"table": "extra", "op": "insert", "key": {"id": 7}, "after": {"id": 7}}
    assert inserted in one.changes().to_json()


def test_a_query_that_ran_before_tells_of_columns_that_came_since(base: Database) -> None:
    neighbour, fork = base.fork().sync, base.fork().sync
    for number in range(2):
        assert neighbour.fetch_all("SELECT * FROM stock")[0].keys() == ("id", "quantity")
        fork.execute(f"ALTER TABLE stock ADD COLUMN extra{number} DEFAULT {number}")
        assert fork.fetch_all("SELECT * FROM stock")[0]._mapping[f"extra{number}"] == number


def test_temporary_tables_are_the_forks_own(base: Database) -> None:
    one, other = base.fork(), base.fork()
    one.sync.execute("CREATE TEMP TABLE noted AS SELECT * FROM stock")
    with pytest.raises(DatabaseError, match="no such table"):
        other.sync.fetch_all("SELECT * FROM noted")
    assert one.sync.fetch_val("SELECT count(*) FROM noted") == 2


def test_random_numbers_are_the_forks_own(base: Database) -> None:
    query = "SELECT random(), hex(randomblob(4))"
    alone = base.fork(seed=5).sync
    expected = [alone.fetch_one(query) for _ in range(3)]
    first, second, unseeded = base.fork(seed=5).sync, base.fork(seed=5).sync, base.fork().sync
    found = [(first.fetch_one(query), second.fetch_one(query), unseeded.fetch_one(query)) for _ in range(3)]
    assert [one for one, _, _ in found] == [two for _, two, _ in found] == expected
    assert len({row for *_, row in found} | set(expected)) == 6


def test_a_closed_fork_in_a_transaction_leaves_nothing_to_the_next(base: Database) -> None:
    fork = base.fork()
    call = fork.sync.transaction()
    call.__enter__()
    fork.sync.execute("DELETE FROM stock")
    fork.close()
    with pytest.raises(DatabaseError):
        call.__exit__(None, None, None)
    assert base.fork().sync.fetch_val("SELECT count(*) FROM stock") == 2
