"""The file that a base is written into, by ``apsw`` or, where there is none, by ``sqlite3``."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING, Any, Protocol

from reward_kit.agent.database.disk import may_be_of_disk
from reward_kit.agent.database.sqlite_functions import install_functions
from reward_kit.agent.database.statement import Answer
from reward_kit.errors import DatabaseError, QueryTimeoutError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import apsw

    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.statement import Parameters

    Authorizer = Callable[[int, str | None, str | None, str | None, str | None], int]

_PRAGMAS = (
    "PRAGMA locking_mode=EXCLUSIVE",
    "PRAGMA journal_mode=MEMORY",
    "PRAGMA synchronous=OFF",
    "PRAGMA cache_size=-65536",
)
_STEPS_BETWEEN_LOOKS = 100_000
STATEMENT_SECONDS = 600.0
"""How long one statement of a seed may take: far above any real one, so that one without an end has one."""


class SeedFile(Protocol):
    """An empty SQLite file, open for writing."""

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open."""

    def run(self, sql: str, parameters: Parameters = None) -> Answer:
        """Run one statement.

        ``DatabaseError`` with SQLite's message, ``StorageError`` if the disk is the cause.
        """

    def guard(self, authorizer: Authorizer, randomness: Randomness) -> None:
        """Have statements judged by ``authorizer``, and ``random()`` answered by ``randomness``."""

    def unguard(self) -> None:
        """Lift the authorizer."""

    def close(self) -> None:
        """Close the file."""


def open_seed_file(path: Path, *, frozen_clock: bool) -> SeedFile:
    """Create ``path``; with ``frozen_clock`` its clock is that of ``clock.py``, which takes ``apsw``."""
    try:
        from reward_kit.agent.database.vfs import connect_file
    except ImportError as error:
        if frozen_clock:
            raise DatabaseError("a database with a frozen clock needs the package apsw") from error
        return _SqliteSeedFile(path)
    return _ApswSeedFile(path, connect_file(path, create=True))


class _TimeLimit:
    """Stops a statement that runs past ``STATEMENT_SECONDS``; SQLite asks it from time to time."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._end = time.monotonic() + STATEMENT_SECONDS
        self._stopped = False

    def __call__(self) -> bool:
        self._stopped = time.monotonic() > self._end
        return self._stopped

    def check(self) -> None:
        """Raise ``QueryTimeoutError`` if it was this that stopped the statement."""
        if self._stopped:
            raise QueryTimeoutError(f"a statement of the seed ran longer than {STATEMENT_SECONDS:g} s")


class _ApswSeedFile:
    def __init__(self, path: Path, connection: apsw.Connection) -> None:
        self._path = path
        self._limit = _TimeLimit()
        self._connection = connection
        for pragma in _PRAGMAS:
            connection.execute(pragma).fetchall()

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def run(self, sql: str, parameters: Parameters = None) -> Answer:
        import apsw

        columns: list[tuple[str, ...]] = []

        def note_columns(cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
            columns.append(tuple(column[0] for column in cursor.get_description()))
            return True

        before = self._connection.total_changes()
        self._limit.start()
        cursor = self._connection.cursor()
        cursor.exec_trace = note_columns
        try:
            # a seed's statements are many and differ: keeping them prepared would gain nothing
            cursor.execute(sql, parameters, can_cache=parameters is not None)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        except apsw.Error as error:
            self._limit.check()
            raise _fault(self._path, str(error), getattr(error, "result", 0)) from error
        names = columns[-1] if columns else ()
        changed = self._connection.total_changes() - before
        if names and not changed:
            changed = -1  # a query, for which SQLAlchemy knows no number of changed rows
        return Answer(names or None, rows, changed, self._connection.last_insert_rowid())

    def guard(self, authorizer: Authorizer, randomness: Randomness) -> None:
        import apsw

        connection = self._connection
        connection.authorizer = authorizer
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        functions: list[tuple[str, Callable[..., int | bytes], int]]
        functions = [("random", randomness.integer, 0), ("randomblob", randomness.blob, 1)]
        for name, function, arguments in functions:
            connection.create_scalar_function(name, function, arguments, flags=apsw.SQLITE_INNOCUOUS)
        # Python looks at Ctrl-C only while it runs itself
        connection.set_progress_handler(self._limit, _STEPS_BETWEEN_LOOKS)

    def unguard(self) -> None:
        self._connection.authorizer = None

    def close(self) -> None:
        self._connection.close()


class _SqliteSeedFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._limit = _TimeLimit()
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in _PRAGMAS:
            self._connection.execute(pragma).fetchall()

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    def run(self, sql: str, parameters: Parameters = None) -> Answer:
        self._limit.start()
        try:
            cursor = self._connection.execute(sql, parameters or ())
            rows = cursor.fetchall()
        except sqlite3.Error as error:
            self._limit.check()
            raise _fault(self._path, str(error), getattr(error, "sqlite_errorcode", 0)) from error
        columns = tuple(column[0] for column in cursor.description or ())
        return Answer(columns or None, rows, cursor.rowcount, cursor.lastrowid or 0)

    def guard(self, authorizer: Authorizer, randomness: Randomness) -> None:
        self._connection.set_authorizer(authorizer)
        install_functions(self._connection, randomness, None)
        self._connection.set_progress_handler(self._limit, _STEPS_BETWEEN_LOOKS)

    def unguard(self) -> None:
        # None takes an authorizer away only from Python 3.11 on
        self._connection.set_authorizer(lambda *_: sqlite3.SQLITE_OK)

    def close(self) -> None:
        self._connection.close()


def _fault(path: Path, message: str, code: int) -> DatabaseError | StorageError:
    if may_be_of_disk(message, code):
        return StorageError(
            f"cannot write the base in {path.parent}: {message}", remedy="No part of it was kept."
        )
    return DatabaseError(message)
