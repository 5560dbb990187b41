"""A fork opens a SQLite connection for its first statement; few of them stay open."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest
from database_workloads import SEED, TABLES, schema_statements, statement, statements
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reward_kit.agent.database import Database, connection
from reward_kit.errors import DatabaseError

SHOP = """
CREATE TABLE stock (id INTEGER PRIMARY KEY, quantity INTEGER);
INSERT INTO stock VALUES (1, 10), (2, 20);
"""
COUNTERS = "SELECT last_insert_rowid(), changes(), total_changes()"

blocks = st.tuples(
    st.integers(0, 2),
    st.booleans(),
    st.lists(statement(statements + schema_statements + [(COUNTERS, ())] * 3), max_size=3),
)


@pytest.fixture
def base(tmp_path: Path) -> Database:
    gc.collect()  # so that no connection of an earlier test is closed while this one counts
    return Database.seed(tmp_path / "base.db", SHOP)


def run_block(db: Database, in_transaction: bool, block: list[tuple[str, list[Any]]]) -> list[Any]:
    """The answers to the statements of ``block``; errors are answers."""
    sync = db.sync
    answers: list[Any] = []

    def answer(sql: str, parameters: list[Any]) -> Any:
        try:
            return sync.fetch_all(sql, parameters)
        except DatabaseError as error:
            return str(error)

    def run() -> None:
        for sql, parameters in block:
            answers.append(answer(sql, parameters))

    if in_transaction:
        with suppress(DatabaseError), sync.transaction():
            run()
    else:
        run()
    return answers


def content(db: Database) -> dict[str, Any]:
    found: dict[str, Any] = {"changes": db.changes().to_json()}
    for table in [*TABLES.split(), "made", "sqlite_master"]:
        with suppress(DatabaseError):
            found[table] = [repr(row) for row in db.sync.fetch_all(f"SELECT * FROM {table} ORDER BY 1, 2")]
    return found


def test_the_answers_do_not_depend_on_how_often_a_fork_had_to_open_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = Database.seed(tmp_path / "base.db", SEED)

    @settings(deadline=None, max_examples=100, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.lists(blocks, max_size=9))
    def check(plan: list[tuple[int, bool, list[Any]]]) -> None:
        monkeypatch.setattr(connection, "MOST_OPEN", 1)
        together = [base.fork(seed=number) for number in range(3)]
        found: list[list[Any]] = [[], [], []]
        for fork, in_transaction, block in plan:
            found[fork].append(run_block(together[fork], in_transaction, block))
        monkeypatch.setattr(connection, "MOST_OPEN", 64)
        for number, fork in enumerate(together):
            with base.fork(seed=number) as alone:
                expected = [run_block(alone, how, block) for which, how, block in plan if which == number]
                assert found[number] == expected
                assert content(fork) == content(alone)
            fork.close()

    check()


async def test_a_bounded_number_of_connections_stays_open(
    base: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "MOST_OPEN", 8)
    before = len(apsw.connections())
    forks = [base.fork() for _ in range(30)]
    assert len(apsw.connections()) == before, "a fork without a statement has no connection"
    ready = asyncio.Event()

    async def call(number: int, fork: Database) -> None:
        async with fork.tool_call():
            await fork.execute("UPDATE stock SET quantity = ? WHERE id = 2", [number])
            if number == len(forks) - 1:
                ready.set()
            await ready.wait()  # a call that is under way keeps its connection
            assert await fork.fetch_val("SELECT quantity FROM stock WHERE id = 2") == number

    await asyncio.gather(*(call(number, fork) for number, fork in enumerate(forks)))
    found = [await fork.fetch_val("SELECT quantity FROM stock WHERE id = 2") for fork in [*forks, *forks]]
    assert found == [*range(30), *range(30)]
    assert len(apsw.connections()) - before <= 9
    for fork in forks:
        fork.close()
    assert len(apsw.connections()) == before


async def test_temporary_tables_stay_with_their_fork(base: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MOST_OPEN", 1)
    one, others = base.fork(), [base.fork() for _ in range(4)]
    await one.execute("CREATE TEMP TABLE noted AS SELECT * FROM stock")
    for other in others:
        with pytest.raises(DatabaseError, match="no such table"):
            await other.fetch_all("SELECT * FROM noted")
    assert await one.fetch_val("SELECT count(*) FROM noted") == 2


def test_a_query_that_ran_before_tells_of_columns_that_came_since(base: Database) -> None:
    fork = base.fork().sync
    for number in range(2):
        assert f"extra{number}" not in fork.fetch_all("SELECT * FROM stock")[0]._mapping
        fork.execute(f"ALTER TABLE stock ADD COLUMN extra{number} DEFAULT {number}")
        assert fork.fetch_all("SELECT * FROM stock")[0]._mapping[f"extra{number}"] == number


def run_python(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-c", code, str(folder / "base.db")]
    return subprocess.run(line, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("state", ["", "with fork.sync.transaction(): "])
def test_a_fork_that_is_open_when_python_ends_prints_nothing(tmp_path: Path, state: str) -> None:
    code = f"""
import sys
from reward_kit.agent.database import Database
fork = Database.seed(sys.argv[1], {SHOP!r}).fork(seed=1)
{state}fork.sync.execute("DELETE FROM stock"); kept = fork.content.backend
from reward_kit.agent.database.overlay import Overlay
bare = Overlay(kept.overlay.base).connect(); bare.execute("BEGIN; DELETE FROM stock")
sys.exit(3)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "b.db")], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


def test_importing_leaves_sqlite_as_it_was(tmp_path: Path) -> None:
    code = """
import sys, apsw
apsw.shutdown = apsw.config = lambda *_: sys.exit("SQLite was configured")
from reward_kit.agent.database import Database
Database.seed(sys.argv[1], "CREATE TABLE t (a)").fork().sync.execute("INSERT INTO t VALUES (1)")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "b.db")], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
