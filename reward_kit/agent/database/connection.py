"""A SQLite connection to the pages of a fork, and the statements that tools and rewards run on it."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import apsw

from reward_kit.agent.base.text import cut
from reward_kit.agent.database.guard import (
    PROGRESS_STEPS,
    Guard,
    describe_statement,
    numeric_limits,
    several_statements,
    without_tail,
)
from reward_kit.agent.database.overlay import Overlay, give_up_lock
from reward_kit.agent.database.statement import ExecuteResult, fetch_result, storable_parameters
from reward_kit.agent.database.vfs import PageFile, install_function
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.recorder import Recorder
    from reward_kit.agent.database.statement import Limits, Parameters, Statement


_MOST_PREPARED = 1000
_ticks = itertools.count()


class _Prepared(NamedTuple):
    """The facts about a statement that hold as long as the schema does.

    ``rows``: it is INSERT, REPLACE, UPDATE or DELETE, whose changed rows are counted, and ``quick`` if
    it may run in any thread.
    """

    columns: tuple[str, ...]
    reads: bool
    rows: bool
    quick: bool


@dataclass(slots=True)
class Counters:
    """The numbers that SQL's functions of these names have in one fork."""

    changes: int = 0
    total_changes: int = 0
    last_insert_rowid: int = 0


class _Functions:
    """SQL functions that answer for one fork at a time.

    They hold no reference to their connection: it would never be freed.
    """

    randomness: Randomness

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = weakref.proxy(connection)
        install_function(connection, "changes", self.changes)
        install_function(connection, "total_changes", self.total_changes)
        install_function(connection, "random", lambda: self.randomness.integer())
        install_function(connection, "randomblob", lambda length: self.randomness.blob(length), 1)

    def serve(self, randomness: Randomness, counters: Counters) -> None:
        """Answer for the fork that has these."""
        self.randomness = randomness
        self._counters = counters
        self._changed_before = self._connection.total_changes()
        self.wrote = False

    def total_changes(self) -> int:
        """Rows that the fork has changed."""
        changed: int = self._connection.total_changes() - self._changed_before
        return self._counters.total_changes + changed

    def changes(self) -> int:
        """Rows that its last INSERT, UPDATE or DELETE has changed."""
        if self.wrote or self._connection.total_changes() > self._changed_before:
            changed: int = self._connection.changes()
            return changed
        return self._counters.changes


class Connection:
    """``sqlite`` is a connection to ``overlay``, set up for the statements of tools.

    ``serve`` comes before the first one.  ``last_use`` grows with each.  ``DatabaseError`` if it cannot be
    opened.
    """

    last_use = 0
    _recorder: Recorder
    _counters: Counters

    def __init__(self, overlay: Overlay, limits: Limits) -> None:
        base = overlay.base
        self._file = PageFile(overlay)
        self.guard = Guard(limits, base.size)
        self._limits = limits
        self._prepared: dict[str, _Prepared] = {}
        self._statement: Statement | None = None
        self._found: _Prepared | None = None
        try:
            pages = (base.size + limits.max_growth_bytes) // base.page_size
            self.sqlite = overlay.connect(f"PRAGMA max_page_count={pages}", file=self._file)
            self.sqlite.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
            self.sqlite.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
            # else SQLite, built with STAT4, prepares a statement again for every new set of parameters
            self.sqlite.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        except apsw.Error as error:
            raise DatabaseError(f"cannot open the database: {error}", place=str(base.path)) from error
        for limit, value in numeric_limits(limits):
            self.sqlite.limit(limit, value)
        self._functions = _Functions(self.sqlite)
        self.sqlite.authorizer = self.guard.authorize
        self.sqlite.set_progress_handler(self.guard.progress, PROGRESS_STEPS)

    def serve(self, overlay: Overlay, randomness: Randomness, recorder: Recorder, counters: Counters) -> None:
        """Move to the fork with this state."""
        if overlay.pages and self._file.overlay is not overlay:
            give_up_lock(self.sqlite)
        self._file.overlay = overlay
        self._functions.serve(randomness, counters)
        self._counters = counters
        self.sqlite.set_last_insert_rowid(counters.last_insert_rowid)
        self._recorder = recorder
        self.guard.schema_changed = recorder.schema_changed = overlay.schema_changed
        # before any statement is prepared: one that was prepared without a hook may delete rows unseen
        self.sqlite.preupdate_hook(recorder.note)

    def leave(self) -> bool:
        """Part with the fork, whose counters are brought up to date; False if that cannot be done now."""
        if not self.guard.can_cache or self.sqlite.in_transaction:
            return False
        if self._file.overlay.pages:
            give_up_lock(self.sqlite)
            if self._file.is_locked:  # a query is not finished
                return False
        counters, functions = self._counters, self._functions
        counters.changes, counters.total_changes = functions.changes(), functions.total_changes()
        counters.last_insert_rowid = self.sqlite.last_insert_rowid()
        self._file.overlay = Overlay(self._file.overlay.base)
        return True

    def run(self, statement: Statement) -> ExecuteResult:
        """Run a statement and fetch its rows; errors as for ``OverlayStore.run``."""
        sqlite, recorder, guard = self.sqlite, self._recorder, self.guard
        position = len(recorder.log)
        before = sqlite.total_changes()
        randomness = self._functions.randomness
        draws = randomness.position
        guard.statement = statement
        self.last_use = next(_ticks)
        try:
            if statement.many is not None:
                return self._run_many(statement, statement.many)
            cursor, prepared = self._execute(statement, statement.parameters)
            columns = prepared.columns
            values = fetch_result(cursor, statement, self._limits, reads=prepared.reads) if columns else []
            changed = -1
            if prepared.rows:
                changed, self._functions.wrote = sqlite.changes(), True
            cursor.close(True)
            return ExecuteResult(columns or None, values, changed, sqlite.last_insert_rowid())
        except apsw.Error as error:
            if statement.writes and describe_statement(statement.sql).changes_rows:
                self._functions.wrote = True
            if sqlite.total_changes() == before:
                recorder.cut(position)
            elif len(recorder.log) > position:  # OR FAIL keeps the rows before the fault
                recorder.distrust()
            if guard.stopped == "budget":
                randomness.position = draws  # it starts again, elsewhere
            raise guard.error(str(error)) from error
        except UnicodeDecodeError as error:
            raise DatabaseError(f"a text in the database is not UTF-8: {error}") from error
        except ValueError as error:
            raise DatabaseError(f"the SQL cannot be run: {error}") from error
        finally:
            guard.statement = guard.stopped = None

    def _run_many(self, statement: Statement, many: Iterable[Parameters]) -> ExecuteResult:
        changed = 0
        for parameters in many:
            cursor, prepared = self._execute(statement, parameters)
            cursor.fetchall()
            if prepared.rows:
                changed += self.sqlite.changes()
                self._functions.wrote = True
        return ExecuteResult(None, [], changed, self.sqlite.last_insert_rowid())

    def _execute(self, statement: Statement, parameters: Parameters) -> tuple[apsw.Cursor, _Prepared]:
        sql, can_cache = statement.sql, self.guard.can_cache
        cursor = self.sqlite.cursor()
        prepared = self._prepared.get(sql) if can_cache else None
        if prepared is None:
            self._statement, self._found = statement, None
            cursor.exec_trace = self._before_first_step
        elif not prepared.reads:
            self._admit_write(statement, prepared)
        try:
            if parameters.__class__ is not dict and isinstance(parameters, str | bytes):
                storable_parameters(parameters)  # else each character would be taken for a value
            cursor.execute(sql, parameters, can_cache=can_cache)
        except KeyError as error:
            raise DatabaseError(f"no value is given for the parameter :{error.args[0]}") from error
        except (TypeError, ValueError, OverflowError) as error:
            # of a kind that SQLite cannot bind, which is found out before anything runs
            converted = storable_parameters(parameters)
            if converted == parameters:
                raise DatabaseError(str(error)) from error
            cursor.execute(sql, converted, can_cache=can_cache)
        finally:
            self._statement = None
        found = prepared or self._found
        assert found is not None
        return cursor, found

    def _before_first_step(self, cursor: apsw.Cursor, text: str, _bindings: object) -> bool:
        statement = self._statement
        if statement is None or self._found is not None:  # a comment after it
            return True
        if len(text) < len(statement.sql) and without_tail(statement.sql[len(text) :]):
            raise several_statements()
        columns = tuple([column[0] for column in cursor.get_description()])
        described = describe_statement(statement.sql)
        reads, rows = cursor.is_readonly and bool(columns), described.changes_rows
        self._found = _Prepared(columns, reads, rows, rows and self.guard.is_quick(described))
        if not reads:
            self._admit_write(statement, self._found)
        if reads or rows:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            self._prepared[statement.sql] = self._found
        elif described.verb == "ROLLBACK TO":
            self._recorder.distrust()
        return True

    def _admit_write(self, statement: Statement, prepared: _Prepared) -> None:
        if prepared.quick and statement.refusal is None:
            statement.writes = True
        elif not statement.writes:  # the first of several runs is let in for all of them
            self.guard.admit(statement)
        recorder = self._recorder
        recorder.known, recorder.schema_changed = None, self.guard.schema_changed


# -- references to rows that do not exist

LONGEST = 100
"""Characters of a value that are shown."""


def broken_reference(connection: apsw.Connection) -> str | None:
    """``doctors.specialty 'PEDX' is in no row of specialties.code``: the first broken one, or None."""
    violations = connection.execute("PRAGMA foreign_key_check").fetchall()
    if not violations:
        return None
    table, rowid, parent, number = violations[0]
    keys = connection.execute("SELECT * FROM pragma_foreign_key_list(?)", [table]).fetchall()
    pairs = [(str(key[3]), key[4]) for key in keys if key[0] == number]
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    if rowid is None or not pairs:
        return f"a row of {table} refers to a row of {parent} that does not exist{more}"
    values = []
    for column, _ in pairs:
        name, of = ('"' + str(one).replace('"', '""') + '"' for one in (column, table))
        sql = f"SELECT quote({name}) FROM {of} WHERE rowid = ?"  # noqa: S608 - names of the schema
        ((value,),) = connection.execute(sql, [rowid]).fetchall()
        values.append(f"{table}.{column} {cut(str(value), LONGEST)}")
    targets = ", ".join(f"{parent}.{target}" if target else str(parent) for _, target in pairs)
    return f"{', '.join(values)} is in no row of {targets}{more}"


def why_refused(connection: apsw.Connection, sql: str, parameters: Parameters) -> str:
    """SQLite's error for a statement that breaks a foreign key, with the reference.

    The statement is run once more without the check, and undone.
    """
    why: str | None = None
    if connection.in_transaction:
        with contextlib.suppress(apsw.Error):
            connection.execute("SAVEPOINT why; PRAGMA defer_foreign_keys = ON").fetchall()
            try:
                connection.execute(sql, storable_parameters(parameters)).fetchall()
                why = broken_reference(connection)
            finally:
                undo = "ROLLBACK TO why; RELEASE why; PRAGMA defer_foreign_keys = OFF"
                connection.execute(undo).fetchall()
    return f"FOREIGN KEY constraint failed{f': {why}' if why else ''}"
