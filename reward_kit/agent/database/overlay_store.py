"""Mode "overlay": ``apsw`` on a connection whose pages are a base and what differs from it."""

from __future__ import annotations

import weakref
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import apsw

from reward_kit.agent.database.base_image import BaseImage
from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.determinism import Randomness
from reward_kit.agent.database.guard import (
    PROGRESS_STEPS,
    Guard,
    describe_statement,
    numeric_limits,
    several_statements,
    without_tail,
)
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.recorder import Mark, Recorder
from reward_kit.agent.database.statement import (
    ExecuteResult,
    Limits,
    Statement,
    fetch_answer,
    storable_parameters,
)
from reward_kit.agent.database.table_diff import Schema, diff_databases, read_schema
from reward_kit.agent.database.vfs import freeze_clock, install_random
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from datetime import datetime
    from pathlib import Path

    from reward_kit.agent.database.database import Mode
    from reward_kit.agent.database.statement import Parameters

_MANY_PAGES = 2000
"""Above this number of changed pages it does not pay to find out which tables they belong to."""


class _Mark(NamedTuple):
    draws: int
    written: Mark


class OverlayStore:
    """The state of a fork: pages (``overlay``), random numbers, clock (``now``), and the record of writes.

    Its connection is opened for the first statement.  Only one thread may use it at a time.
    """

    mode: Mode = "overlay"
    begin_sql = "BEGIN"
    is_shared = False
    lost = None
    path = None

    def __init__(
        self,
        overlay: Overlay,
        limits: Limits,
        randomness: Randomness | None = None,
        now: datetime | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.overlay = overlay
        self.limits = limits
        self.randomness = randomness
        self.now = now
        self.guard = Guard(limits, overlay.base.size)
        self._frozen = None if now is None else now.timestamp()
        self._recorder = recorder
        self._connection: apsw.Connection | None = None
        self._statement: Statement | None = None
        self._columns: tuple[str, ...] | None = None
        self._reads = False

    @classmethod
    def open(cls, path: Path, limits: Limits, base: Path | None = None) -> OverlayStore:
        """A base or a complete file; with ``base`` the state of the file as one of that base."""
        image = BaseImage.open(path)
        if base is None:
            return cls(Overlay(image), limits)
        return cls(Overlay.between(BaseImage.open(base), image), limits)

    @classmethod
    def of_delta(cls, delta: bytes, path: Path, limits: Limits) -> OverlayStore:
        """The state to which ``delta`` leads from the base at ``path``."""
        return cls(Overlay.from_delta(delta, BaseImage.open(path), f"delta of {path}"), limits)

    @property
    def engine(self) -> NoReturn:
        """There is none."""
        raise DatabaseError(
            "this database has no engine, because it has no file",
            remedy='Write `ToolRegistry(..., database="file")` to have one.',
        )

    sync_engine = engine

    @property
    def base_path(self) -> Path:
        """The file of the base."""
        return self.overlay.base.path

    @property
    def base_size(self) -> int:
        """Bytes of the base."""
        return self.overlay.base.size

    @property
    def in_transaction(self) -> bool:
        """True while a transaction is open."""
        return self._connection is not None and self._connection.in_transaction

    def _connect(self) -> apsw.Connection:
        base = self.overlay.base
        try:
            pages = (base.size + self.limits.max_growth_bytes) // base.page_size
            connection = self.overlay.connect(f"PRAGMA max_page_count={pages}")
            connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
            for limit, value in numeric_limits(self.limits):
                connection.limit(limit, value)
            if self._recorder is None:
                settled = Changes() if self.overlay.pristine else changes_later(self.overlay)
                self._recorder = Recorder(_schema_of(base), self._compare, settled)
        except apsw.Error as error:
            raise DatabaseError(f"cannot open the database: {error}", place=str(base.path)) from error
        self.guard.schema_changed = self._recorder.schema_changed = self.overlay.schema_changed
        if self.randomness is not None:
            install_random(connection, self.randomness)
        # before any statement is prepared: one that was prepared without a hook may delete rows unseen
        connection.preupdate_hook(self._recorder.note)
        connection.authorizer = self.guard.authorize
        connection.set_progress_handler(self.guard.progress, PROGRESS_STEPS)
        self._connection = connection
        return connection

    def control(self, sql: str) -> None:
        """Run a statement of this package's own (BEGIN, COMMIT ...)."""
        try:
            (self._connection or self._connect()).execute(sql)
        except apsw.Error as error:
            raise DatabaseError(str(error)) from error

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query of this package's own."""
        rows: list[tuple[Any, ...]] = (self._connection or self._connect()).execute(sql).fetchall()
        return rows

    # --- statements ---

    def run(self, statement: Statement) -> ExecuteResult:
        """Run a statement and fetch its rows.

        ``DatabaseError`` with SQLite's message; ``NotNowError`` if it holds up the event loop.
        """
        connection = self._connection or self._connect()
        recorder = self._recording
        position = len(recorder.log)
        before = connection.total_changes()
        draws = 0 if self.randomness is None else self.randomness.position
        self._statement = statement
        self.guard.start(statement)
        if self._frozen is not None:
            freeze_clock(self._frozen)
        try:
            if statement.many is None:
                return self._run_once(connection, statement)
            return self._run_many(connection, statement, statement.many)
        except apsw.Error as error:
            if connection.total_changes() == before:
                recorder.cut(position)
            elif len(recorder.log) > position:  # OR FAIL keeps the rows before the fault
                recorder.distrust()
            raise self.guard.error(str(error)) from error
        except UnicodeDecodeError as error:
            raise DatabaseError(f"a text in the database is not UTF-8: {error}") from error
        finally:
            self._statement = None
            self.guard.finish()
            if self._frozen is not None:
                freeze_clock(None)
            if self.guard.stopped == "budget" and self.randomness is not None:
                self.randomness.position = draws  # it starts again, elsewhere

    def _run_once(self, connection: apsw.Connection, statement: Statement) -> ExecuteResult:
        cursor = self._execute(connection, statement, statement.parameters)
        columns = self._columns
        values = fetch_answer(cursor, statement, self.limits, reads=self._reads) if columns else []
        changed = -1
        if not self._reads:
            text = describe_statement(statement.sql)
            if text.changes_rows:
                changed = connection.changes()
            elif text.verb == "ROLLBACK TO":
                self._recording.distrust()
        cursor.close(True)
        return ExecuteResult(columns or None, values, changed, connection.last_insert_rowid())

    def _run_many(
        self, connection: apsw.Connection, statement: Statement, many: Iterable[Parameters]
    ) -> ExecuteResult:
        changed = 0
        for parameters in many:
            for _row in self._execute(connection, statement, parameters):
                pass
            if describe_statement(statement.sql).changes_rows:
                changed += connection.changes()
        return ExecuteResult(None, [], changed, connection.last_insert_rowid())

    def _execute(
        self, connection: apsw.Connection, statement: Statement, parameters: Parameters
    ) -> apsw.Cursor:
        self._columns = None
        if isinstance(parameters, str | bytes):
            storable_parameters(parameters)  # else each character would be taken for a value
        can_cache = self.guard.can_cache
        cursor = connection.cursor()
        cursor.exec_trace = self._before_first_step
        try:
            return cursor.execute(statement.sql, parameters, can_cache=can_cache)
        except KeyError as error:
            raise DatabaseError(f"no value is given for the parameter :{error.args[0]}") from error
        except (TypeError, ValueError, OverflowError) as error:
            # of a kind that SQLite cannot bind, which is found out before anything runs
            converted = storable_parameters(parameters)
            if converted == parameters:
                raise DatabaseError(str(error)) from error
            return cursor.execute(statement.sql, converted, can_cache=can_cache)

    def _before_first_step(self, cursor: apsw.Cursor, text: str, _bindings: object) -> bool:
        statement = self._statement
        assert statement is not None
        if self._columns is not None or (
            len(text) < len(statement.sql) and without_tail(statement.sql[len(text) :])
        ):
            raise several_statements()
        self._columns = tuple([column[0] for column in cursor.get_description()])
        self._reads = cursor.is_readonly and bool(self._columns)
        if not self._reads:
            self._recording.forget_known()
            self._recording.schema_changed = self.guard.schema_changed
        if not statement.writes:  # the first of several runs is let in for all of them
            self.guard.admit(statement, reads=self._reads)
        return True

    # --- changes ---

    @property
    def _recording(self) -> Recorder:
        assert self._recorder is not None, "it was connected"
        return self._recorder

    def changes(self) -> Changes:
        """The rows that differ from the base, those of an open transaction included."""
        if self._connection is None:
            self._connect()
        return self._recording.total()

    def _compare(self, unchanged: Collection[str]) -> Changes:
        with _faults_of_reading(), closing(Overlay(self.overlay.base).connect()) as base:
            return Changes(diff_databases(base.execute, self.query, unchanged))

    def mark(self, *, recorded: bool) -> _Mark:
        """The present content, for ``restore`` and, if it is ``recorded``, for ``since``."""
        if self._connection is None:
            self._connect()
        recorder = self._recording
        draws = 0 if self.randomness is None else self.randomness.position
        if not recorded:
            return _Mark(draws, recorder.position())
        return _Mark(draws, recorder.mark(settle=not self.in_transaction))

    def since(self, mark: _Mark) -> Changes:
        """The rows changed since ``mark``."""
        return self._recording.since(mark.written)

    def restore(self, mark: _Mark) -> None:
        """SQLite has taken back what was written since ``mark``."""
        self._recording.restore(mark.written)
        if self.randomness is not None:
            self.randomness.position = mark.draws

    def note_fault(self, error: BaseException) -> None:
        """Nothing is written to a disk."""

    # --- copies ---

    def fork(self, seed: int | None, now: datetime | None) -> OverlayStore:
        """A private copy of the committed state, with its own random numbers and clock if they are given."""
        overlay = self.overlay.fork()
        randomness = self.randomness.copy() if self.randomness is not None else None
        if seed is not None:
            randomness = Randomness(seed)
        copy = OverlayStore(overlay, self.limits, randomness, now or self.now)
        recorder = self._recorder
        if recorder is not None:
            schema, compare = _schema_of(overlay.base), copy._compare
            if recorder.exact:
                copy._recorder = Recorder(schema, compare, recorder.settled, recorder.log)
            else:
                copy._recorder = Recorder(schema, compare, changes_later(overlay))
        return copy

    def reader(self) -> OverlayStore:
        """The committed state for reading only."""
        return self.fork(None, None)

    def export(self, path: Path) -> Path:
        """Write the committed state as a complete SQLite file; returns the path."""
        return self.overlay.export(path)

    def delta(self) -> bytes:
        """The bytes that lead from the base to the committed state."""
        return self.overlay.delta()

    def close(self) -> None:
        """Close the connection; an open transaction is lost."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close(True)


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

    Only tables that have changed pages are read.  ``DatabaseError`` inside a transaction, or if SQLite cannot
    read the changes.
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
