"""Statements on a fork: ``apsw`` on connections whose pages are an overlay."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import apsw

from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.clock import set_clock
from reward_kit.agent.database.connection_pool import PooledConnection, Seat, pool_of
from reward_kit.agent.database.fetching import fetch_rows
from reward_kit.agent.database.session import ChangeHistory, SessionRecorder
from reward_kit.agent.database.statement import Answer, Judge, Parameters, Statement, storable_parameters
from reward_kit.agent.database.statement_text import describe_statement, is_blank
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.guards import Limits
    from reward_kit.agent.database.overlay import Overlay


class OverlayDriver:
    """The guarded connection of one fork; ``Driver`` says what it is asked to do.

    The connection comes from the pool of its base (``connection_pool``) when something is asked of it, and
    goes back at ``rest``.  ``earlier`` are the changes that ``overlay`` holds already, if they are known.
    """

    begin_sql = "BEGIN"

    def __init__(
        self, overlay: Overlay, limits: Limits, randomness: Randomness | None, earlier: Changes | None = None
    ) -> None:
        self._overlay = overlay
        self._limits = limits
        self._pool = pool_of(overlay, limits)
        self._clock = overlay.now
        self._seat = Seat(randomness)
        self._pooled: PooledConnection | None = None
        self._interrupting = threading.Lock()
        self._recorder: SessionRecorder | None = None
        self._known: tuple[int, Changes] | None = None
        self._history = ChangeHistory(overlay, earlier)
        self._statement: Statement | None = None
        self._columns: tuple[str, ...] | None = None
        self._reads = False

    @property
    def judge(self) -> Judge:
        return self._taken().judge

    @property
    def in_transaction(self) -> bool:
        return self._pooled is not None and bool(self._pooled.connection.in_transaction)

    @property
    def version(self) -> int:
        return self._seat.writes if self._pooled is None else self._pooled.judge.writes

    def run(self, statement: Statement) -> Answer:
        pooled = self._taken()
        cursor = pooled.connection.cursor()
        cursor.exec_trace = self._before_first_step
        self._statement = statement
        statement.writes = False
        pooled.judge.watch.start(statement.ticket)
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
            pooled.judge.watch.stop()
            if statement.writes and describe_statement(statement.sql).changes_rows:
                pooled.judge.changed_rows = True
            cursor.close(True)
            if self._clock is not None:
                set_clock(None)

    def control(self, sql: str) -> None:
        try:
            self._taken().connection.execute(sql)
        except apsw.Error as error:
            raise DatabaseError(str(error)) from error
        if sql == "ROLLBACK":
            self._forget_recording()

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self._taken().connection.execute(sql).fetchall()
        return rows

    def interrupt(self) -> None:
        with self._interrupting:
            if self._pooled is not None:
                self._pooled.connection.interrupt()

    def changes(self) -> Changes:
        return self._history.total() if self._recorder is None else self._recorder.changes()

    def since_now(self) -> Callable[[], Changes] | None:
        if self.in_transaction:
            return None
        if self._recorder is not None:  # of statements before; the next write begins another
            self._note_changes()
        return self._recorded

    def protect(self) -> None:
        pass  # nobody else can write to a fork

    def restore(self) -> None:
        pass

    def rest(self) -> None:
        if self._recorder is not None:
            self._note_changes()
        if self._pooled is not None and self._pooled.may_go_on:
            self._leave()

    def close(self) -> None:
        self._forget_recording()
        if self._pooled is not None:
            self._leave()

    def _taken(self) -> PooledConnection:
        """The connection, taken from the pool unless that was done."""
        pooled = self._pooled
        if pooled is None:
            try:
                pooled = self._pool.take(self._overlay, self._limits)
                pooled.enter(self._overlay, self._seat)
            except apsw.Error as error:
                place = str(self._overlay.base.path)
                raise DatabaseError(f"cannot open the database: {error}", place=place) from error
            self._pooled = pooled
        return pooled

    def _leave(self) -> None:
        """Give the connection back if others may have it, else close it."""
        with self._interrupting:  # nobody may interrupt its next user for our sake
            pooled, self._pooled = self._pooled, None
        assert pooled is not None, "there is one to leave"
        if pooled.may_go_on:
            pooled.leave()
            self._pool.give(pooled)
        else:
            pooled.close()

    def _recorded(self) -> Changes:
        """What the transaction has changed so far."""
        if self._recorder is None:
            return Changes()
        version = self.version
        if self._known is None or self._known[0] != version:
            self._known = version, self._recorder.since_start()
        return self._known[1]

    def _note_changes(self) -> None:
        """Add to the history what was recorded since the connection was taken."""
        try:
            self._history.add(self._recorded())
        except DatabaseError:  # a text that cannot be read: who asks for the changes will be told
            self._history = ChangeHistory(self._overlay)
        self._forget_recording()

    def _forget_recording(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
            self._recorder = self._known = None

    def _run_once(self, cursor: apsw.Cursor, statement: Statement) -> Answer:
        self._execute(cursor, statement, statement.parameters)
        columns = self._columns
        values = self._fetch(cursor, statement.first) if columns else []
        changed = (
            -1
            if self._reads or not describe_statement(statement.sql).changes_rows
            else self._taken().connection.changes()
        )
        return Answer(columns or None, values, changed, self._taken().connection.last_insert_rowid())

    def _run_many(self, cursor: apsw.Cursor, statement: Statement, many: Iterable[Parameters]) -> Answer:
        changed = 0
        for parameters in many:
            self._execute(cursor, statement, parameters)
            for _row in cursor:
                pass
            if describe_statement(statement.sql).changes_rows:
                changed += self._taken().connection.changes()
        return Answer(None, [], changed, self._taken().connection.last_insert_rowid())

    def _execute(self, cursor: apsw.Cursor, statement: Statement, parameters: Parameters) -> None:
        self._columns = None
        if isinstance(parameters, (str, bytes)):
            storable_parameters(parameters)  # else each character would be taken for a value
        # a statement prepared before the schema was changed tells the columns that there were
        can_cache = not self.judge.authorizer.schema_touched
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
            raise self.judge.several_statements()
        self._columns = tuple([column[0] for column in cursor.get_description()])
        self._reads = cursor.is_readonly
        if not statement.writes:  # the first of several runs is let in for all of them
            self.judge.admit(statement, reads=self._reads, returns_rows=bool(self._columns))
        if not self._reads and self._recorder is None:
            pooled = self._taken()
            self._recorder = SessionRecorder(
                pooled.connection, self._overlay, self._history, pooled.judge.authorizer
            )
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
