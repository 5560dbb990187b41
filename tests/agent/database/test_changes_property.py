"""Equal changes are equal databases, whatever was done: NULL keys, no keys, odd values, schema changes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest
from database_workloads import SEED, TABLES, schema_statements, statement, statements
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reward_kit.agent.database.base import seed_base
from reward_kit.agent.database.base_image import BaseImage
from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.overlay_diff import overlay_changes
from reward_kit.agent.database.session import ChangeHistory, SessionRecorder

INTERNAL = ("sqlite_", "texts_", "boxes_", "search_")
"""Prefixes of tables that SQLite and virtual tables keep for themselves."""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseImage:
    return BaseImage.open(seed_base(tmp_path_factory.mktemp("changes") / "base.db", SEED))


workloads = st.lists(statement(statements), max_size=7)
workloads_with_schema = st.lists(statement(statements + schema_statements * 2), max_size=7)


@dataclass
class Rollout:
    """A fork that ``run`` has worked on."""

    overlay: Overlay
    connection: apsw.Connection
    recorder: SessionRecorder

    @classmethod
    def of(cls, overlay: Overlay, earlier: Changes | None = None) -> Rollout:
        connection = overlay.connect()
        history = ChangeHistory(overlay, earlier)
        return cls(overlay, connection, SessionRecorder(connection, overlay, history))

    def run(self, workload: list[tuple[str, list[Any]]]) -> Changes:
        for sql, parameters in workload:
            with contextlib.suppress(apsw.Error):
                self.connection.execute(sql, parameters)
            if self.connection.in_transaction:  # the statement failed in the middle of its transaction
                self.connection.execute("ROLLBACK")
        return self.recorder.changes()

    def record_anew(self, earlier: Changes) -> None:
        """Go on with another recorder, as a fork does with each of its transactions."""
        self.recorder.close()
        self.recorder = SessionRecorder(self.connection, self.overlay, ChangeHistory(self.overlay, earlier))

    def close(self) -> None:
        self.recorder.close()
        self.connection.close()


def dump(rollout: Rollout) -> object:
    """All that a query can see: schema and rows, with the type of every value, in no order.

    The rowid of a full-text table is what other tables refer to, so it counts.
    """
    execute: Callable[..., Any] = rollout.connection.execute
    objects = execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL")
    schema = sorted(row for row in objects if not row[1].startswith(INTERNAL))
    tables = {name for kind, name, _ in schema if kind == "table"}
    rows = {table: execute(f"SELECT {'rowid, ' * (table == 'texts')}* FROM {table}") for table in tables}
    return schema, {table: sorted(map(repr, found)) for table, found in rows.items()}


def indexed(rollout: Rollout) -> list[Any]:
    """What the index over another table's texts holds."""
    return rollout.connection.execute("SELECT id, sz FROM search_docsize").fetchall()


relaxed = settings(
    deadline=None,
    max_examples=80,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def reflected(workload: list[tuple[str, list[Any]]]) -> Iterator[list[tuple[str, list[Any]]]]:
    """Workloads that are likely to end where ``workload`` does: itself, its parts, another order."""
    yield workload
    yield workload[::-1]
    yield workload[1:]
    yield workload[:-1]
    yield workload + workload[-1:]


@pytest.mark.parametrize("kind", [workloads, workloads_with_schema], ids=["rows", "schema"])
def test_equal_changes_are_equal_databases(base: BaseImage, kind: st.SearchStrategy[Any]) -> None:
    outcomes = {True: 0, False: 0}

    @relaxed
    @given(kind, kind)
    def check(first: list[Any], second: list[Any]) -> None:
        left = Rollout.of(Overlay(base))
        changes = left.run(first)
        content = dump(left), indexed(left)
        for workload in [second, *reflected(first)]:
            right = Rollout.of(Overlay(base))
            same = right.run(workload).equals(changes)
            assert same == (content == (dump(right), indexed(right)))
            assert same == (not right.recorder.changes().describe(changes))
            outcomes[same] += 1
            right.close()
        left.close()

    check()
    assert min(outcomes.values()) > 100, "the workloads must lead to the same and to different places"


@pytest.mark.parametrize("kind", [workloads, workloads_with_schema], ids=["rows", "schema"])
def test_recorded_changes_are_those_that_comparing_finds(
    base: BaseImage, kind: st.SearchStrategy[Any]
) -> None:
    @relaxed
    @given(kind)
    def check(workload: list[Any]) -> None:
        rollout = Rollout.of(Overlay(base))
        assert rollout.run(workload) == overlay_changes(rollout.overlay)
        rollout.connection.execute("BEGIN")
        rollout.connection.execute("DELETE FROM keyless; UPDATE named SET v = 5; DELETE FROM texts")
        inside = rollout.recorder.changes()
        rollout.connection.execute("COMMIT")
        assert inside == rollout.recorder.changes() == overlay_changes(rollout.overlay)
        rollout.close()

    check()


@pytest.mark.parametrize("kind", [workloads, workloads_with_schema], ids=["rows", "schema"])
def test_changes_of_two_spans_add_up(base: BaseImage, kind: st.SearchStrategy[Any]) -> None:
    @relaxed
    @given(kind, kind)
    def check(first: list[Any], second: list[Any]) -> None:
        rollout = Rollout.of(Overlay(base))
        before = rollout.run(first)
        rollout.record_anew(before)
        after = rollout.run(second)
        span = after.minus(before)
        assert rollout.recorder.since_start() == span
        assert after == overlay_changes(rollout.overlay)
        rollout.record_anew(after)
        assert not rollout.recorder.since_start()
        assert before.then(span) == after
        assert after.minus(after) == Changes()
        assert Changes().then(after) == after.minus(Changes()) == after
        assert Changes.from_json(after.to_json()) == after
        if before == after:
            assert not span
        rollout.close()

    check()


@pytest.mark.parametrize("known", [True, False], ids=["told", "found-out"])
@pytest.mark.parametrize("kind", [workloads, workloads_with_schema], ids=["rows", "schema"])
def test_a_fork_of_a_written_fork_knows_its_changes_from_the_base(
    base: BaseImage, kind: st.SearchStrategy[Any], known: bool
) -> None:
    @settings(relaxed, max_examples=40)
    @given(kind, kind)
    def check(first: list[Any], second: list[Any]) -> None:
        parent = Rollout.of(Overlay(base))
        earlier = parent.run(first)
        child = Rollout.of(parent.overlay.fork(), earlier if known else None)
        assert child.recorder.changes() == earlier
        assert child.run(second) == overlay_changes(child.overlay) == parent.run(second)
        parent.close()
        child.close()

    check()


def test_the_workloads_touch_every_table(base: BaseImage) -> None:
    everything = " ".join(sql for sql, _ in statements)
    assert all(table in everything for table in TABLES.split())
    assert Path(base.path).exists()
