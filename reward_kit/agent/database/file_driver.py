"""Statements on a plain file, by ``sqlite3`` of the standard library.

Not by ``apsw``: its SQLite is another one than that of ``sqlite3``, and two of them in one process undo
each other's locks on the same file.  ``db.engine`` and tools that open ``db.path`` use ``sqlite3``.
"""

from __future__ import annotations

import contextlib
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

from reward_kit.agent.database.base_image import seeded_with_foreign_keys
from reward_kit.agent.database.fetching import fetch_rows
from reward_kit.agent.database.guards import PROGRESS_STEPS, numeric_limits
from reward_kit.agent.database.sqlite_functions import install_functions
from reward_kit.agent.database.statement import Answer, Judge, storable_parameters
from reward_kit.agent.database.statement_text import describe_statement, without_tail
from reward_kit.agent.database.table_diff import diff_databases
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path

    from reward_kit.agent.database.changes import Changes
    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.guards import Limits
    from reward_kit.agent.database.statement import Parameters, Statement

LOCK_SECONDS = 0.5
"""How long a statement waits for another connection to end its transaction; the event loop waits with it.

Calls take turns, so whoever holds a lock is in the same call, and more patience would hardly help.
"""
LOCKED = "database is locked"
"""What SQLite says of that."""
_DEFENSIVE = 1010
"""SQLITE_DBCONFIG_DEFENSIVE, which sqlite3 names from Python 3.12 on."""
_BUSY, _LOCKED = 5, 6
_PLAIN = frozenset({type(None), int, float, str, bytes})


class FileDriver:
    """The connection of one file, guarded; see ``Driver`` for what it is asked to do.

    ``earlier`` are the changes of the file against ``base``, if they are known.  ``writable`` is false
    for a base.  ``note_fault`` is told what SQLite raised.
    """

    begin_sql = "BEGIN IMMEDIATE"

    def __init__(
        self,
        path: Path,
        base: Path,
        limits: Limits,
        *,
        writable: bool,
        randomness: Randomness | None = None,
        now: datetime | None = None,
        earlier: Changes | None = None,
        note_fault: Callable[[Exception], None] | None = None,
    ) -> None:
        self._base = base
        self._note_fault = note_fault
        self._path = path
        self._limits = limits
        self._connection = open_file(path) if writable else open_unchanging(path)
        self.judge = Judge(limits, path.stat().st_size)
        if writable:
            prepare_connection(self._connection, base)
        install_functions(self._connection, randomness, now)
        self._guard()
        self._known = None if earlier is None else (self.version, earlier)
        self._snapshot: tuple[tuple[int, int], sqlite3.Connection] | None = None
        self._shared = False

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    @property
    def version(self) -> tuple[int, int]:
        # the second number changes when another connection commits
        return self.judge.writes, self.query("PRAGMA data_version")[0][0]

    def run(self, statement: Statement) -> Answer:
        sql = statement.sql
        if len(sql) > self._limits.max_sql_bytes:  # SQLite's own limit can only be set from Python 3.11 on
            raise DatabaseError("the statement is too long")
        text = describe_statement(sql)
        self.judge.watch.start(statement.ticket)
        try:
            with self._faults():
                self.judge.admit(statement, reads=text.reads, returns_rows=text.reads)
                cursor = self._execute(statement)
                names = cursor.description
                values = self._fetch(cursor, first=statement.first, reads=text.reads) if names else []
                changed = cursor.rowcount if text.changes_rows else -1
                last = cursor.lastrowid
                cursor.close()
        finally:
            self.judge.watch.stop()
        columns = tuple([name[0] for name in names]) if names else None
        return Answer(columns, values, changed, last or 0)

    def control(self, sql: str) -> None:
        self.query(sql)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self._faults():
            return self._connection.execute(sql).fetchall()

    def interrupt(self) -> None:
        self._connection.interrupt()

    def changes(self) -> Changes:
        version = self.version
        if self._known is None or self._known[0] != version:
            with self._faults(), closing(open_unchanging(self._base)) as base:
                self._known = version, diff_databases(base.execute, self._connection.execute)
        return self._known[1]

    def share(self) -> None:
        """From now on others may write to the file, and ``restore`` has to undo what they did in a call."""
        if not self._shared:
            self._shared = True
            self.protect()

    def since_now(self) -> None:
        return None  # a comparison of files knows no beginning

    def protect(self) -> None:
        if not self._shared:
            return
        version = self.version
        if self._snapshot is not None and self._snapshot[0] == version:
            return
        copy = self._snapshot[1] if self._snapshot else sqlite3.connect("", check_same_thread=False)
        # another connection, which sees what is committed and not what this call has written
        with self._faults(), closing(open_file(self._path)) as source:
            copy_content(source, copy)
        self._snapshot = version, copy

    def restore(self) -> None:
        if self._snapshot is None or self._snapshot[0][1] == self.version[1]:
            return
        with self._faults():
            copy_content(self._snapshot[1], self._connection)
        self._snapshot = self.version, self._snapshot[1]

    def rest(self) -> None:
        pass  # the file is this database's own, and so is its connection

    def close(self) -> None:
        self._connection.close()
        if self._snapshot is not None:
            self._snapshot[1].close()

    def _guard(self) -> None:
        connection = self._connection
        if hasattr(connection, "setlimit"):  # Python 3.11
            for limit, value in numeric_limits(self._limits):
                connection.setlimit(limit, value)
        if hasattr(connection, "setconfig"):  # Python 3.12
            connection.setconfig(_DEFENSIVE, True)
        page_size = connection.execute("PRAGMA page_size").fetchone()[0]
        pages = (self._path.stat().st_size + self._limits.max_growth_bytes) // page_size
        connection.execute(f"PRAGMA max_page_count={pages}").fetchall()
        connection.set_authorizer(self.judge.authorizer)
        connection.set_progress_handler(self.judge.watch, PROGRESS_STEPS)

    def _execute(self, statement: Statement) -> sqlite3.Cursor:
        # sqlite3 takes a second semicolon for a second statement
        sql = without_tail(statement.sql) if ";" in statement.sql else statement.sql
        try:
            if statement.many is not None:
                return self._connection.executemany(sql, map(_bindable, statement.many))
            return self._connection.execute(sql, _bindable(statement.parameters))
        except (sqlite3.Error, OverflowError, ValueError) as error:
            for parameters in statement.many or [statement.parameters]:
                storable_parameters(parameters)  # says it better, if they are the reason
            if isinstance(error, sqlite3.Error):
                raise
            raise DatabaseError(str(error)) from error

    def _fetch(self, cursor: sqlite3.Cursor, *, first: bool, reads: bool) -> list[tuple[Any, ...]]:
        if not reads:
            # what a statement wrote stays written, so its RETURNING is answered in full
            return cursor.fetchall()
        if first:
            row = cursor.fetchone()
            return [] if row is None else [row]
        return fetch_rows(cursor, self._limits)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> Exception:
        message = str(error)
        if self._note_fault is not None:
            self._note_fault(error)
        if message == "interrupted":
            return self.judge.interrupted()
        if "one statement at a time" in message:
            return self.judge.several_statements()
        if message.startswith(LOCKED):
            return DatabaseError(
                f"{message}: another connection (of db.engine, or to db.path) is in a transaction",
                remedy="In one call, write either through `db` or through that.",
            )
        return self.judge.denied(message)


def open_file(path: Path) -> sqlite3.Connection:
    """A connection that leaves transactions to its user, for any thread."""
    return sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)


def open_unchanging(path: Path) -> sqlite3.Connection:
    """A connection for reading a file that nobody writes to, hence without locks."""
    address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)


def copy_content(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Make ``target`` equal to what ``source`` committed; ``sqlite3.OperationalError`` if one is in use."""
    locked = 0

    def check(status: int, _remaining: int, _total: int) -> None:
        nonlocal locked
        locked += status & 0xFF in (_BUSY, _LOCKED)
        if locked > 2:  # sqlite3 itself would try for ever, every 0.25 s
            raise sqlite3.OperationalError(LOCKED)

    source.backup(target, progress=check)


def prepare_connection(connection: sqlite3.Connection, base: Path) -> None:
    """Settings for a private copy of ``base``: safe from a killed process, not from a power failure."""
    for pragma in (
        "journal_mode=TRUNCATE",
        "synchronous=OFF",
        "temp_store=MEMORY",
        "cache_spill=OFF",  # a spilled page would lock out readers before the commit
        f"foreign_keys={'ON' if seeded_with_foreign_keys(base) else 'OFF'}",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _bindable(parameters: Parameters) -> Mapping[str, Any] | Sequence[Any]:
    if parameters is None:
        return ()
    values = parameters.values() if isinstance(parameters, dict) else parameters
    if isinstance(parameters, (dict, list, tuple)) and all(type(value) in _PLAIN for value in values):
        return parameters
    return storable_parameters(parameters) or ()
