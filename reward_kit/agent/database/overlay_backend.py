"""Mode "overlay": ``apsw`` on a connection whose pages are a base and what differs from it."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

import apsw

from reward_kit.agent.database.backend import Backend
from reward_kit.agent.database.base_image import BaseImage
from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.delta import delta_of, export
from reward_kit.agent.database.determinism import Randomness, julian_day, set_clock
from reward_kit.agent.database.guards import PROGRESS_STEPS, Guard, Limits, numeric_limits, several_statements
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.recorder import Mark, Recorder
from reward_kit.agent.database.sql_text import describe_statement, is_blank
from reward_kit.agent.database.statement import Answer, Statement, fetch_rows, storable_parameters
from reward_kit.agent.database.vfs import install_random
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime
    from pathlib import Path

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from reward_kit.agent.database.backend import Mode
    from reward_kit.agent.database.statement import Parameters
    from reward_kit.errors import StorageError


class OverlayBackend(Backend):
    """The state of a fork: pages and clock (``overlay``), random numbers, and the record of its writes."""

    mode: Mode = "overlay"
    begin_sql = "BEGIN"
    is_shared = False
    path: Path | None = None
    lost: StorageError | None = None
    guard: Guard

    def __init__(
        self, overlay: Overlay, randomness: Randomness | None = None, recorder: Recorder | None = None
    ) -> None:
        self.overlay = overlay
        self.randomness = randomness
        self._recorder = recorder
        self._connection: apsw.Connection | None = None
        self._interrupting = threading.Lock()
        self._memory = _Memory()
        self._statement: Statement | None = None
        self._columns: tuple[str, ...] | None = None
        self._reads = False

    @classmethod
    def open(cls, path: Path) -> OverlayBackend:
        """A base or a complete file."""
        return cls(Overlay(BaseImage.open(path)))

    @property
    def engine(self) -> AsyncEngine:
        raise _no_engine()

    @property
    def sync_engine(self) -> Engine:
        raise _no_engine()

    @property
    def base_path(self) -> Path:
        return self.overlay.base.path

    @property
    def base_size(self) -> int:
        return self.overlay.base.size

    # --- the connection ---

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def can_reconnect(self) -> bool:
        return not (self._open.in_transaction or self.guard.authorizer.temporary)

    @property
    def in_transaction(self) -> bool:
        return self._connection is not None and self._connection.in_transaction

    @property
    def _open(self) -> apsw.Connection:
        assert self._connection is not None, "it is connected"
        return self._connection

    def connect(self, limits: Limits) -> None:
        base = self.overlay.base
        try:
            connection = self.overlay.connect()
            connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
            for limit, value in numeric_limits(limits):
                connection.limit(limit, value)
            pages = (base.size + limits.max_growth_bytes) // base.page_size
            connection.execute(f"PRAGMA max_page_count={pages}").fetchall()
            if self._recorder is None:
                self._recorder = Recorder(self.overlay)
        except apsw.Error as error:
            raise DatabaseError(f"cannot open the database: {error}", place=str(base.path)) from error
        self.guard = guard = Guard(limits, base.size)
        guard.authorizer.schema_touched = self.overlay.schema_cookie != base.schema_cookie
        if self.randomness is not None:
            install_random(connection, self.randomness)
        self._memory.recall(connection)
        # before any statement is prepared: one that was prepared without a hook may delete rows unseen
        connection.preupdate_hook(self._recorder.note)
        connection.authorizer = guard.authorizer
        connection.set_progress_handler(guard.watch, PROGRESS_STEPS)
        self._connection = connection

    def disconnect(self) -> None:
        with self._interrupting:
            connection, self._connection = self._connection, None
        if connection is not None:
            self._memory.keep(connection)
            connection.close(True)

    def interrupt(self) -> None:
        with self._interrupting:
            if self._connection is not None:
                self._connection.interrupt()

    def control(self, sql: str) -> None:
        try:
            self._open.execute(sql)
        except apsw.Error as error:
            raise DatabaseError(str(error)) from error

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._open.execute(sql, parameters).fetchall()
        return rows

    # --- statements ---

    def run(self, statement: Statement) -> Answer:
        guard = self.guard
        cursor = self._open.cursor()
        cursor.exec_trace = self._before_first_step
        self._statement = statement
        statement.writes = False
        position = self._recording.position
        before = self._open.total_changes()
        guard.watch.start(statement.ticket)
        if self.overlay.now is not None:
            set_clock(self.overlay.now)
        try:
            if statement.many is not None:
                return self._run_many(cursor, statement, statement.many)
            return self._run_once(cursor, statement)
        except apsw.Error as error:
            self._note_failure(position, before)
            raise self._translate(error) from error
        except UnicodeDecodeError as error:
            raise DatabaseError(f"a text in the database is not UTF-8: {error}") from error
        finally:
            self._statement = None
            guard.watch.stop()
            cursor.close(True)
            if self.overlay.now is not None:
                set_clock(None)

    def _run_once(self, cursor: apsw.Cursor, statement: Statement) -> Answer:
        self._execute(cursor, statement, statement.parameters)
        columns = self._columns
        values = self._fetch(cursor, first=statement.first) if columns else []
        connection = self._open
        text = describe_statement(statement.sql)
        changed = connection.changes() if text.changes_rows and not self._reads else -1
        if text.verb == "ROLLBACK TO":
            self._recording.distrust()
        return Answer(columns or None, values, changed, connection.last_insert_rowid())

    def _run_many(self, cursor: apsw.Cursor, statement: Statement, many: Iterable[Parameters]) -> Answer:
        changed = 0
        connection = self._open
        for parameters in many:
            self._execute(cursor, statement, parameters)
            for _row in cursor:
                pass
            if describe_statement(statement.sql).changes_rows:
                changed += connection.changes()
        return Answer(None, [], changed, connection.last_insert_rowid())

    def _execute(self, cursor: apsw.Cursor, statement: Statement, parameters: Parameters) -> None:
        self._columns = None
        if isinstance(parameters, (str, bytes)):
            storable_parameters(parameters)  # else each character would be taken for a value
        # a statement prepared before the schema was changed tells the columns that there were
        can_cache = not self.guard.authorizer.schema_touched
        try:
            cursor.execute(statement.sql, parameters, can_cache=can_cache)
        except KeyError as error:
            raise DatabaseError(f"no value is given for the parameter :{error.args[0]}") from error
        except (TypeError, ValueError, OverflowError) as error:
            # of a kind that SQLite cannot bind, which is found out before anything runs
            converted = storable_parameters(parameters)
            if converted == parameters:
                raise DatabaseError(str(error)) from error
            cursor.execute(statement.sql, converted, can_cache=can_cache)

    def _before_first_step(self, cursor: apsw.Cursor, text: str, _bindings: object) -> bool:
        statement = self._statement
        assert statement is not None
        if self._columns is not None or (
            len(text) < len(statement.sql) and not is_blank(statement.sql[len(text) :])
        ):
            raise several_statements()
        self._columns = tuple([column[0] for column in cursor.get_description()])
        self._reads = cursor.is_readonly
        if not self._reads:
            self._recording.version += 1
        if not statement.writes:  # the first of several runs is let in for all of them
            self.guard.admit(statement, reads=self._reads, returns_rows=bool(self._columns))
        return True

    def _fetch(self, cursor: apsw.Cursor, *, first: bool) -> list[tuple[Any, ...]]:
        if not self._reads:
            # what a statement wrote stays written, so its RETURNING is answered in full
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows
        if first:
            row = cursor.fetchone()
            return [] if row is None else [row]
        return fetch_rows(cursor, self.guard.limits)

    def _note_failure(self, position: int, before: int) -> None:
        """Let the record forget what SQLite has undone of a statement that failed."""
        if self._open.total_changes() == before:
            self._recording.cut(position)
        elif self._recording.position > position:  # OR FAIL keeps the rows before the fault
            self._recording.distrust()

    def _translate(self, error: apsw.Error) -> Exception:
        if isinstance(error, apsw.InterruptError):
            return self.guard.interrupted()
        return self.guard.denied(str(error))

    # --- changes ---

    @property
    def _recording(self) -> Recorder:
        assert self._recorder is not None, "it was connected"
        return self._recorder

    @property
    def _schema_touched(self) -> bool:
        return self.guard.authorizer.schema_touched

    def changes(self) -> Changes:
        return self._recording.total(
            self.query, schema_touched=self._connection is not None and self._schema_touched
        )

    def known_changes(self) -> Changes | None:
        if self._connection is not None:
            return None
        if self._recorder is None:
            return Changes() if self.overlay.pristine else None
        if not self._recorder.exact or self.overlay.schema_cookie != self.overlay.base.schema_cookie:
            return None
        return self.changes()

    def mark(self, *, recorded: bool) -> Mark:
        total = None
        if recorded and (self._schema_touched or not self._recording.exact):
            total = self.changes()
        return self._recording.mark(total, committed=not self._open.in_transaction)

    def since(self, mark: Mark) -> Changes:
        return self._recording.since(mark, self.query, schema_touched=self._schema_touched)

    def restore(self, mark: Mark) -> None:
        self._recording.restore(mark)

    def note_fault(self, error: BaseException) -> None:
        pass  # nothing is written to a disk

    # --- copies ---

    def fork(self, seed: int | None, now: datetime | None) -> OverlayBackend:
        overlay = self.overlay.fork()
        if now is not None:
            overlay.now = julian_day(now)
        randomness = self.randomness.copy() if self.randomness is not None else None
        recorder = None if self._recorder is None else self._recorder.copy(overlay)
        return OverlayBackend(overlay, randomness if seed is None else Randomness(seed), recorder)

    def reader(self) -> OverlayBackend:
        return self.fork(None, None)

    def export(self, path: Path) -> Path:
        return export(self.overlay, path)

    def delta(self) -> bytes:
        return delta_of(self.overlay)

    def close(self) -> None:
        pass  # the pages go with this object


class _Memory:
    """The counters of a SQLite connection, for the next connection of the fork."""

    def __init__(self) -> None:
        self._inserted = 0
        self._changed = 0
        self._changed_in_all = 0

    def keep(self, connection: apsw.Connection) -> None:
        """Take the numbers of ``connection``, which is about to be closed."""
        self._inserted = connection.last_insert_rowid()
        changed_now = connection.total_changes()
        if changed_now:
            self._changed = connection.changes()
            self._changed_in_all += changed_now

    def recall(self, connection: apsw.Connection) -> None:
        """Let ``connection``, which is new, answer as the one before it would."""
        if self._inserted:
            connection.set_last_insert_rowid(self._inserted)
        if not self._changed_in_all:
            return
        known = weakref.ref(connection)  # no collector looks into SQLite's own references
        changed, before = self._changed, self._changed_in_all

        def last(*_: object) -> int:
            present = known()
            return present.changes() if present is not None and present.total_changes() else changed

        def in_all(*_: object) -> int:
            present = known()
            return before if present is None else before + present.total_changes()

        connection.create_scalar_function("changes", last, 0)
        connection.create_scalar_function("total_changes", in_all, 0)


def _no_engine() -> DatabaseError:
    return DatabaseError(
        "this database has no engine, because it is no file of its own",
        remedy='Write `ToolRegistry(..., database="file")` to have one.',
    )
