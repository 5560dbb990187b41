"""Mode "overlay": ``apsw`` on a connection whose pages are a base and what differs from it."""

from __future__ import annotations

import weakref
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import apsw

from reward_kit.agent.database.base_image import BaseImage
from reward_kit.agent.database.changes import NO_CHANGES, Changes
from reward_kit.agent.database.connection import Connection
from reward_kit.agent.database.determinism import Randomness
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.recorder import Mark, Recorder
from reward_kit.agent.database.table_diff import Schema, diff_databases, read_schema
from reward_kit.agent.database.vfs import freeze_clock
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from datetime import datetime
    from pathlib import Path

    from reward_kit.agent.database.database import Mode
    from reward_kit.agent.database.statement import ExecuteResult, Limits, Statement

_MANY_PAGES = 2000
"""Above this number of changed pages it does not pay to find out which tables they belong to."""
_MOST_IDLE = 16
"""Connections that a base keeps for forks to come."""


class _Idle(list[Connection]):
    """Connections whose forks were closed, for others of the same base; shared by all of them."""

    closed = False

    def take(self) -> Connection | None:
        with suppress(IndexError):  # none is left: forks begin in any thread
            return self.pop()
        return None

    def close(self) -> None:
        self.closed = True
        while self:
            self.pop().sqlite.close(True)


class OverlayStore:
    """The state of a fork: pages (``overlay``), random numbers, clock (``now``), and the record of writes.

    Its connection is opened, or taken over from another fork, for the first statement.  Only one thread may
    use it at a time.  ``is_shared``: others may write to it, so a tool call takes its turn when it starts.
    ``lost`` is the error to raise if the disk did not keep what was written.
    """

    mode: Mode = "overlay"
    begin_sql = "BEGIN"
    is_shared = False
    path = None
    lost = None

    def __init__(
        self,
        overlay: Overlay,
        limits: Limits,
        randomness: Randomness | None = None,
        now: datetime | None = None,
        *,
        idle: _Idle | None = None,
    ) -> None:
        self.limits = limits
        self.randomness = randomness or Randomness(None)
        self.now = now
        self.overlay = overlay
        self.base_path = overlay.base.path
        self._frozen = None if now is None else now.timestamp()
        self._owns_idle = idle is None
        self._idle = _Idle() if idle is None else idle
        self._connection: Connection | None = None
        self._recorder: Recorder | None = None

    @classmethod
    def open(cls, path: Path, limits: Limits, base: Path | None = None) -> OverlayStore:
        """A base or a complete file; with ``base`` the state of the file as one of that base."""
        image = BaseImage.open(path)
        if base is None:
            return cls(Overlay(image), limits)
        return cls(Overlay.between(BaseImage.open(base), image), limits)

    @classmethod
    def of_delta(
        cls, delta: bytes, path: Path, limits: Limits, changes: Changes | None = None
    ) -> OverlayStore:
        """The state to which ``delta`` leads from the base at ``path``, with these ``changes`` if known."""
        store = cls(Overlay.from_delta(delta, BaseImage.open(path), f"delta of {path}"), limits)
        if changes is not None:
            store._recorder = Recorder(_schema_of(store.overlay.base), store._compare, changes)
        return store

    @property
    def engine(self) -> NoReturn:
        """There is none."""
        raise DatabaseError(
            "this database has no engine, because it has no file",
            remedy='Write `ToolRegistry(..., database="file")` to have one.',
        )

    sync_engine = engine

    @property
    def base_size(self) -> int:
        """Bytes of the base."""
        return self.overlay.base.size

    @property
    def was_stopped(self) -> bool:
        """True if the last statement was stopped."""
        return self._connection is not None and self._connection.guard.stopped is not None

    @property
    def in_transaction(self) -> bool:
        """True while a transaction is open."""
        return self._connection is not None and self._connection.sqlite.in_transaction

    def _connected(self) -> Connection:
        if self._connection is not None:
            return self._connection
        self._starts_with_base = self.overlay.pristine
        connection = self._idle.take() if self._starts_with_base else None
        if connection is None:
            connection = Connection(self.overlay, self.limits, self.randomness)
        else:
            connection.take_over(self.randomness)
            self.overlay = connection.overlay
        connection.record_with(self._recording)
        self._connection = connection
        return connection

    @property
    def _recording(self) -> Recorder:
        if self._recorder is None:
            settled = NO_CHANGES if self.overlay.pristine else changes_later(self.overlay)
            self._recorder = Recorder(_schema_of(self.overlay.base), self._compare, settled)
        return self._recorder

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query of this package's own."""
        rows: list[tuple[Any, ...]] = self._connected().sqlite.execute(sql).fetchall()
        return rows

    def control(self, sql: str) -> None:
        """Run a statement of this package's own (BEGIN, COMMIT ...)."""
        try:
            self._connected().sqlite.execute(sql)
        except apsw.Error as error:
            raise DatabaseError(str(error)) from error

    # --- statements ---

    def run(self, statement: Statement) -> ExecuteResult:
        """Run a statement and fetch its rows.

        ``DatabaseError`` with SQLite's message; ``NotNowError`` if it holds up the event loop.
        """
        connection = self._connection or self._connected()
        if self._frozen is not None:
            freeze_clock(self._frozen)
        try:
            return connection.run(statement)
        finally:
            if self._frozen is not None:
                freeze_clock(None)

    # --- changes ---

    def changes(self) -> Changes:
        """The rows that differ from the base, those of an open transaction included."""
        return self._recording.total()

    def _compare(self, unchanged: Collection[str]) -> Changes:
        with _faults_of_reading(), closing(Overlay(self.overlay.base).connect()) as before:
            return Changes(diff_databases(before.execute, self.query, unchanged))

    def mark(self, *, recorded: bool) -> tuple[int, Mark]:
        """The present content, for ``restore`` and, if it is ``recorded``, for ``since``."""
        recorder = self._recorder or self._recording
        if recorded and recorder.missed is not None and not self.in_transaction:
            recorder.settle()
        return self.randomness.position, recorder.mark(recorded=recorded)

    def since(self, mark: tuple[int, Mark]) -> Changes:
        """The rows changed since ``mark``."""
        return self._recording.since(mark[1])

    def restore(self, mark: tuple[int, Mark]) -> None:
        """SQLite has taken back what was written since ``mark``."""
        self._recording.restore(mark[1])
        self.randomness.position = mark[0]

    def note_fault(self, error: BaseException) -> None:
        """Do nothing: no disk holds what is written."""

    # --- copies ---

    def fork(self, seed: int | None, now: datetime | None) -> OverlayStore:
        """A private copy of the committed state, with its own random numbers and clock if they are given."""
        randomness = self.randomness.fork(seed)
        overlay, recorder = self.overlay.fork(), self._recorder
        copy = OverlayStore(overlay, self.limits, randomness, now or self.now, idle=self._idle)
        if recorder is not None and recorder.exact:
            schema = _schema_of(overlay.base)
            copy._recorder = Recorder(schema, copy._compare, recorder.settled, recorder.log)
        return copy

    def reader(self) -> OverlayStore:
        """The committed state for reading only; to be closed before this one."""
        return self.fork(None, None)

    def export(self, path: Path) -> None:
        """Write the committed state as a complete SQLite file."""
        self.overlay.export(path)

    def delta(self) -> bytes:
        """The bytes that lead from the base to the committed state."""
        return self.overlay.delta()

    def close(self) -> None:
        """Close the connection, or leave it to a later fork; an open transaction is lost."""
        connection, self._connection = self._connection, None
        if connection is not None:
            reused = self._starts_with_base and not self._idle.closed and len(self._idle) < _MOST_IDLE
            if reused and connection.reset():
                self._idle.append(connection)
            else:
                connection.sqlite.close(True)
        if self._owns_idle:
            self._idle.close()


_schemas: weakref.WeakKeyDictionary[BaseImage, Schema] = weakref.WeakKeyDictionary()


def _schema_of(base: BaseImage) -> Schema:
    """The schema of ``base``, read once per process."""
    schema = _schemas.get(base)
    if schema is None:
        with closing(Overlay(base).connect()) as connection:
            schema = _schemas[base] = read_schema(connection.execute)
    return schema


def overlay_changes(overlay: Overlay) -> Changes:
    """The changes from the base to the committed state of ``overlay``, found by comparing the two.

    Only tables that have changed pages are read.  ``DatabaseError`` if SQLite cannot read the changes.
    """
    if overlay.pristine:
        return Changes()
    with (
        _faults_of_reading(),
        closing(Overlay(overlay.base).connect()) as before,
        closing(overlay.fork().connect()) as after,
    ):
        unchanged = _unchanged_tables(before, after, overlay.changed_pages())
        return Changes(diff_databases(before.execute, after.execute, unchanged))


def changes_later(overlay: Overlay) -> Changes:
    """``overlay_changes`` of the present state, computed when they are first read."""
    return Changes.deferred(partial(overlay_changes, overlay.fork()))


@contextmanager
def _faults_of_reading() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise DatabaseError(f"a text in the database is not UTF-8: {error}") from error
    except apsw.Error as error:
        raise DatabaseError(f"cannot tell what was changed: {error}") from error


def _unchanged_tables(before: apsw.Connection, after: apsw.Connection, changed_pages: list[int]) -> set[str]:
    """Tables that start at the same page in both and have no changed page, hence the same rows."""
    if "ENABLE_DBSTAT_VTAB" not in apsw.compile_options or len(changed_pages) > _MANY_PAGES:
        return set()
    roots = "SELECT name, rootpage FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
    same = set(before.execute(roots)) & set(after.execute(roots))
    numbers = ",".join(map(str, changed_pages))
    changed = f"SELECT DISTINCT name FROM dbstat WHERE pageno IN ({numbers})"  # noqa: S608 - integers
    return {name for name, _ in same} - {name for (name,) in after.execute(changed)}
