"""Recorded changes against the comparison of whole databases, for random statements."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from database_workloads import SEED, schema_statements, statement, statements
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from thorough import often

from reward_kit.agent.base.encoding import normal
from reward_kit.agent.database import Changes, Database
from reward_kit.agent.database.seeding import split_statements
from reward_kit.errors import DatabaseError

INTERNAL = ("sqlite_", "texts_", "boxes_", "search_")
"""Prefixes of tables that SQLite and virtual tables keep for themselves."""

Workload = list[tuple[str, list[Any]]]
workloads = st.lists(statement(statements), max_size=7)
workloads_with_schema = st.lists(statement(statements + schema_statements * 2), max_size=7)
kinds = pytest.mark.parametrize("kind", [workloads, workloads_with_schema], ids=["rows", "schema"])
relaxed = settings(
    max_examples=often(70, 25),
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


class _UndoError(Exception):
    """Ends a transaction that is to be rolled back."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    with Database.seed(tmp_path_factory.mktemp("changes") / "base.db", SEED) as database:
        yield database


def run(fork: Database, workload: Workload) -> Changes:
    """The changes of ``fork`` after each statement of ``workload`` in a transaction of its own."""
    for sql, parameters in workload:
        parts = [part.sql.strip(";") for part in split_statements(sql)]
        undo = parts[0] == "BEGIN"
        with contextlib.suppress(DatabaseError, _UndoError), fork.sync.transaction():
            for part in parts[1:-1] if undo else parts:
                fork.sync.execute(part, parameters)
            if undo:
                raise _UndoError
    return fork.changes()


def compared(fork: Database, base: Database) -> Changes:
    """The changes without the record of writes: those of the stored pages."""
    with Database.open(base.base_path, delta=fork.delta()) as stored:
        return stored.changes()


def dump(fork: Database, form: Callable[[Any], Any] = repr) -> object:
    """All that a query can see: schema and rows, with the type of every value, in no order.

    The rowid of a full-text table is what other tables refer to, so it counts.
    """
    execute: Callable[..., Any] = fork.sync.fetch_all
    objects = execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    schema = sorted(tuple(row) for row in objects if not row[1].startswith(INTERNAL))
    tables = {name for kind, name, _ in schema if kind == "table"}
    rows = {table: execute(f"SELECT {'rowid, ' * (table == 'texts')}* FROM {table}") for table in tables}
    indexed = execute("SELECT id, sz FROM search_docsize")  # of an index over another table's texts
    return schema, {table: sorted(map(form, found)) for table, found in rows.items()}, indexed


def normal_row(row: Any) -> str:
    """The row with 1.0 written as 1."""
    return repr(normal(list(row)))


def reflected(workload: Workload) -> Iterator[Workload]:
    """Workloads that are likely to end where ``workload`` does: itself, its parts, another order."""
    yield workload
    yield workload[::-1]
    yield workload[1:]
    yield workload[:-1]
    yield workload + workload[-1:]


@kinds
def test_equal_changes_are_equal_databases(base: Database, kind: st.SearchStrategy[Any]) -> None:
    outcomes = {True: 0, False: 0}

    @relaxed
    @given(kind, kind)
    def check(first: Workload, second: Workload) -> None:
        with base.fork() as left:
            changes = run(left, first)
            content, by_value = dump(left), dump(left, normal_row)
            for workload in [second, *reflected(first)]:
                with base.fork() as right:
                    same = run(right, workload).equals(changes, exact=True)
                    assert same == (content == dump(right))
                    assert same == (not right.changes().describe(changes, exact=True))
                    alike = right.changes().equals(changes)
                    assert alike == (by_value == dump(right, normal_row))
                    assert alike == (not right.changes().describe(changes))
                    outcomes[same] += 1

    check()
    assert min(outcomes.values()) > often(100, 10), "the workloads lead to the same and to different places"


@kinds
def test_recorded_changes_are_those_that_comparing_finds(base: Database, kind: Any) -> None:
    @relaxed
    @given(kind)
    def check(workload: Workload) -> None:
        with base.fork() as fork:
            assert run(fork, workload) == compared(fork, base)
            with fork.sync.transaction():
                for sql in ("DELETE FROM keyless", "UPDATE named SET v = 5", "DELETE FROM texts"):
                    with contextlib.suppress(DatabaseError):
                        fork.sync.execute(sql)
                inside = fork.changes()
            assert inside == fork.changes() == compared(fork, base)

    check()


@kinds
async def test_changes_of_calls_add_up(base: Database, kind: st.SearchStrategy[Any]) -> None:
    @relaxed
    @given(kind, kind)
    def check(first: Workload, second: Workload) -> None:
        with base.fork() as fork:
            before = run(fork, first)
            after = run(fork, second)
            span = after.minus(before)
            assert fork.changes(since=before) == span
            assert after == compared(fork, base)
            assert before.then(span) == after
            assert after.minus(after) == Changes()
            assert Changes().then(after) == after.minus(Changes()) == after
            assert Changes.from_json(after.to_json()) == after

    check()
    with base.fork() as fork:
        total = Changes()
        for sql, _ in [*statements, *schema_statements]:
            before = fork.changes()
            with contextlib.suppress(DatabaseError):
                async with fork.tool_call() as call:
                    await fork.execute(sql, [1, 2, 3][: sql.count("?")])
                assert call.changes == fork.changes(since=before), sql
                total = total.then(call.changes)
        assert total == fork.changes() == compared(fork, base)


@pytest.mark.parametrize("stored", [False, True])
@kinds
def test_a_fork_of_a_written_fork_knows_its_changes(base: Database, kind: Any, stored: bool) -> None:
    @settings(relaxed, max_examples=often(30))
    @given(kind, kind)
    def check(first: Workload, second: Workload) -> None:
        with base.fork() as parent:
            earlier = run(parent, first)
            origin = Database.open(base.base_path, delta=parent.delta())
            with (origin if stored else parent).fork() as child:
                assert child.changes() == earlier
                assert run(child, second) == compared(child, base) == run(parent, second)

    check()


@pytest.mark.parametrize("count", [1, 100_000])
def test_any_number_of_rows_is_recorded(tmp_path: Path, count: int) -> None:
    seed = "CREATE TABLE t (id INTEGER PRIMARY KEY, v); CREATE TABLE other (v); INSERT INTO other VALUES (1);"
    with Database.seed(tmp_path / "base.db", seed) as base, base.fork() as fork:
        fork.sync.execute("DELETE FROM other")
        numbers = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?)"
        fork.sync.execute(f"INSERT INTO t {numbers} SELECT i, 0 FROM n", [count])
        fork.sync.execute("UPDATE t SET v = 1 WHERE id = 1")
        changes = fork.changes()
        assert len(changes) == count + 1
        assert changes[1].after == {"id": 1, "v": 1}
