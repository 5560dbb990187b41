"""Statements on a fork: ``apsw`` on a connection whose pages are an overlay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

from reward_kit.agent.database.clock import set_clock
from reward_kit.agent.database.fetching import fetch_rows
from reward_kit.agent.database.guards import PROGRESS_STEPS, Limits, numeric_limits
from reward_kit.agent.database.session import SessionRecorder
from reward_kit.agent.database.statement import (
    Answer,
    Judge,
    Parameters,
    Statement,
    storable_parameters,
)
from reward_kit.agent.database.statement_text import describe_statement, is_blank
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from reward_kit.agent.database.changes import Changes
    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.overlay import Overlay


class OverlayDriver:
    """The guarded connection of one fork; ``Driver`` says what it is asked to do."""

    def __init__(
        self, overlay: Overlay, limits: Limits, randomness: Randomness | None, earlier: Changes | None = None
    ) -> None:
        self._overlay = overlay
        self._clock = overlay.now
        self._connection = overlay.connect()
        self._recorder = SessionRecorder(self._connection, overlay, earlier)
        self.judge = Judge(limits, overlay.base.size)
        self._statement: Statement | None = None
        self._columns: tuple[str, ...] | None = None
        self._reads = False
        self._guard(limits)
        if randomness is not None:
            self._draw_from(randomness)

    begin_sql = "BEGIN"

    @property
    def in_transaction(self) -> bool:
        return bool(self._connection.in_transaction)

    @property
    def version(self) -> int:
        return self.judge.writes

    def run(self, statement: Statement) -> Answer:
        cursor = self._connection.cursor()
        cursor.exec_trace = self._before_first_step
        self._statement = statement
        self.judge.watch.start(statement.ticket)
        if self._clock is not None:
            set_clock(self._clock)
        try:
            if statement.many is not None:
                return self._run_many(cursor, statement, statement.many)
            return self._run_once(cursor, statement)
        except apsw.Error as error:
            raise self._translate(error) from error
        except UnicodeDecodeError as error:
            raise DatabaseError(f"a text in the database is not UTF-8: {error}") from error
        finally:
            self._statement = None
            self.judge.watch.stop()
            cursor.close(True)
            if self._clock is not None:
                set_clock(None)

    def control(self, sql: str) -> None:
        try:
            self._connection.execute(sql)
        except apsw.Error as error:
            raise DatabaseError(str(error)) from error

    def query(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._connection.execute(sql, parameters).fetchall()
        return rows

    def interrupt(self) -> None:
        self._connection.interrupt()

    def changes(self) -> Changes:
        return self._recorder.changes()

    def since_now(self) -> Callable[[], Changes] | None:
        return None if self.in_transaction else self._recorder.since_now()

    def protect(self) -> None:
        pass  # nobody else can write to a fork

    def restore(self) -> None:
        pass

    def close(self) -> None:
        self._recorder.close()
        self._connection.close(True)

    def _draw_from(self, randomness: Randomness) -> None:
        functions: list[tuple[str, Callable[..., int | bytes], int]]
        functions = [("random", randomness.integer, 0), ("randomblob", randomness.blob, 1)]
        for name, function, arguments in functions:
            # innocuous: also where the schema calls them, in DEFAULT, CHECK, triggers and views
            self._connection.create_scalar_function(name, function, arguments, flags=apsw.SQLITE_INNOCUOUS)

    def _guard(self, limits: Limits) -> None:
        connection = self._connection
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        for limit, value in numeric_limits(limits):
            connection.limit(limit, value)
        pages = (self._overlay.base.size + limits.max_growth_bytes) // self._overlay.base.page_size
        connection.execute(f"PRAGMA max_page_count={pages}").fetchall()
        connection.authorizer = self.judge.authorizer
        connection.set_progress_handler(self.judge.watch, PROGRESS_STEPS)

    def _run_once(self, cursor: apsw.Cursor, statement: Statement) -> Answer:
        self._execute(cursor, statement, statement.parameters)
        columns = self._columns
        values = self._fetch(cursor, statement.first) if columns else []
        changed = (
            -1
            if self._reads or not describe_statement(statement.sql).changes_rows
            else self._connection.changes()
        )
        return Answer(columns or None, values, changed, self._connection.last_insert_rowid())

    def _run_many(self, cursor: apsw.Cursor, statement: Statement, many: Iterable[Parameters]) -> Answer:
        changed = 0
        for parameters in many:
            self._execute(cursor, statement, parameters)
            for _row in cursor:
                pass
            changed += self._connection.changes()
        return Answer(None, [], changed, self._connection.last_insert_rowid())

    def _execute(self, cursor: apsw.Cursor, statement: Statement, parameters: Parameters) -> None:
        self._columns = None
        if isinstance(parameters, (str, bytes)):
            storable_parameters(parameters)  # else each character would be taken for a value
        try:
            cursor.execute(statement.sql, parameters)
        except KeyError as error:
            raise DatabaseError(f"no value is given for the parameter :{error.args[0]}") from error
        except (TypeError, ValueError, OverflowError) as error:
            # of a kind that SQLite cannot bind, which is found out before anything runs
            converted = storable_parameters(parameters)
            if converted == parameters:
                raise DatabaseError(str(error)) from error
            cursor.execute(statement.sql, converted)

    def _before_first_step(self, cursor: apsw.Cursor, text: str, _bindings: object) -> bool:
        statement = self._statement
        assert statement is not None
        if self._columns is not None or (
            len(text) < len(statement.sql) and not is_blank(statement.sql[len(text) :])
        ):
            raise self.judge.several_statements()
        self._columns = tuple([column[0] for column in cursor.get_description()])
        self._reads = cursor.is_readonly
        self.judge.admit(statement, reads=self._reads, returns_rows=bool(self._columns))
        return True

    def _fetch(self, cursor: apsw.Cursor, first: bool) -> list[tuple[Any, ...]]:
        if not self._reads:
            # what a statement wrote stays written, so its RETURNING is answered in full
            rows: list[tuple[Any, ...]] = cursor.fetchall()
            return rows
        if first:
            row = cursor.fetchone()
            return [] if row is None else [row]
        return fetch_rows(cursor, self.judge.limits)

    def _translate(self, error: apsw.Error) -> Exception:
        if isinstance(error, apsw.InterruptError):
            return self.judge.interrupted()
        return self.judge.denied(str(error))
