"""The connection that seed SQL and ``def seed(db)`` write through."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import apsw

from reward_kit.agent.database.disk import is_of_disk
from reward_kit.agent.database.sql_text import first_word, split_statements
from reward_kit.agent.database.statement import Answer, storable_parameters
from reward_kit.agent.database.vfs import connect_file, install_random
from reward_kit.errors import DatabaseError, QueryTimeoutError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.row import Row
    from reward_kit.agent.database.sqlalchemy_result import StatementResult
    from reward_kit.agent.database.statement import Parameters

# codes of sqlite3_set_authorizer
_OK, _DENY, _IGNORE = 0, 1, 2
_PRAGMA, _ATTACH, _FUNCTION = 19, 24, 31

_GROUPED = frozenset(
    {
        "ALTER", "ANALYZE", "CREATE", "DELETE", "DROP", "INSERT", "REINDEX", "REPLACE", "SELECT",
        "UPDATE", "VALUES", "WITH",
    }
)  # fmt: skip
"""Statements that are run in a common transaction: one for each would cost several writes to the file."""

_PRAGMAS = frozenset(
    {
        "application_id", "auto_vacuum", "data_version", "defer_foreign_keys", "encoding",
        "foreign_key_check", "foreign_key_list", "foreign_keys", "freelist_count",
        "ignore_check_constraints", "index_info", "index_list", "index_xinfo", "integrity_check",
        "legacy_alter_table", "optimize", "page_count", "page_size", "quick_check",
        "recursive_triggers", "table_info", "table_list", "table_xinfo", "user_version",
    }
)  # fmt: skip
_PRAGMAS_WITHOUT_EFFECT = frozenset(
    {
        "cache_size", "cache_spill", "journal_mode", "journal_size_limit", "locking_mode",
        "mmap_size", "secure_delete", "synchronous", "temp_store", "wal_autocheckpoint",
    }
)  # fmt: skip
"""Dump tools write them; this package decides how the file is written, so they are passed over."""

_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer"})
_OPENING = (
    "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF; "
    "PRAGMA cache_size=-65536"
)
_STEPS_BETWEEN_LOOKS = 100_000
STATEMENT_SECONDS = 600.0
"""Limit of one statement of a seed: far above any real one, so that one without an end has one."""


class SeedConnection:
    """A writable connection to the database that is being seeded.

    Refused, because bundles are shared between people: reading or writing other files (ATTACH, VACUUM INTO,
    extensions) and switching SQLite's safety off (``PRAGMA writable_schema`` and the like).
    """

    def __init__(self, path: Path, randomness: Randomness) -> None:
        self._path = path
        self._grouping = False
        self._refused: str | None = None
        self._end = 0.0
        self._stopped = False
        self._connection = connection = connect_file(path, create=True)
        connection.execute(_OPENING).fetchall()
        connection.authorizer = self._authorize
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        install_random(connection, randomness)
        # Python looks at Ctrl-C only while it runs itself
        connection.set_progress_handler(self._is_out_of_time, _STEPS_BETWEEN_LOOKS)

    def execute(self, sql: object, parameters: Parameters = None) -> StatementResult:
        """Run one statement (a ``str``, or SQLAlchemy's ``text()``) and give SQLAlchemy's ``Result``.

        ``DatabaseError`` with SQLite's message.
        """
        from reward_kit.agent.database.sqlalchemy_result import plain_sql, result_of

        if not isinstance(sql, str):
            sql, parameters = plain_sql(sql, parameters)
        result: StatementResult = result_of(self.run(sql, parameters))
        return result

    def fetch_all(self, sql: str, parameters: Parameters = None) -> list[Row]:
        """All rows of a query."""
        return self.run(sql, parameters).rows()

    def fetch_one(self, sql: str, parameters: Parameters = None) -> Row | None:
        """The first row of a query, or ``None``."""
        return next(iter(self.fetch_all(sql, parameters)), None)

    def fetch_val(self, sql: str, parameters: Parameters = None) -> Any:
        """The first column of the first row of a query, or ``None``."""
        row = self.fetch_one(sql, parameters)
        return None if row is None else row[0]

    def executemany(self, sql: str, rows: Iterable[Parameters]) -> int:
        """Run one statement once for each of ``rows``; the number of rows changed."""
        return sum(max(0, self.run(sql, row).rowcount) for row in rows)

    def executescript(self, script: str) -> None:
        """Run all statements of ``script``."""
        for statement in split_statements(script):
            self.run(statement.sql)

    def commit(self) -> None:
        """Does nothing: what a seed wrote is kept if the whole of it ends without an error."""

    def run(self, sql: str, parameters: Parameters = None) -> Answer:
        """Run one statement.

        ``DatabaseError`` with SQLite's message, ``StorageError`` if the disk is the cause.
        """
        self._group(first_word(sql))
        self._refused = None
        if parameters is not None:
            parameters = storable_parameters(parameters)
        columns: list[tuple[str, ...]] = []

        def note_columns(cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
            columns.append(tuple(column[0] for column in cursor.get_description()))
            return True

        before = self._connection.total_changes()
        self._end = time.monotonic() + STATEMENT_SECONDS
        self._stopped = False
        cursor = self._connection.cursor()
        cursor.exec_trace = note_columns
        try:
            # a seed's statements are many and differ: keeping them prepared would gain nothing
            cursor.execute(sql, parameters, can_cache=parameters is not None)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        except apsw.Error as error:
            raise self._fault(error) from error
        names = columns[-1] if columns else ()
        changed = self._connection.total_changes() - before
        if names and not changed:
            changed = -1  # a query, for which SQLAlchemy knows no number of changed rows
        return Answer(names or None, rows, changed, self._connection.last_insert_rowid())

    def value(self, sql: str) -> int:
        """The only value of a query of this package's own."""
        (value,) = self._connection.execute(sql).fetchall()[0]
        assert isinstance(value, int)
        return value

    @property
    def is_left_open(self) -> bool:
        """True if the seed has begun a transaction that it has not ended yet."""
        return self._connection.in_transaction and not self._grouping

    def finish(self) -> None:
        """Commit and lift the guards; ``DatabaseError`` if the seed left a transaction of its own open."""
        if self.is_left_open:
            raise DatabaseError("a transaction is begun and never ended", remedy="Add COMMIT.")
        self._group("")
        self._connection.authorizer = None

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _group(self, verb: str) -> None:
        """Begin the common transaction before a statement that can be in it, end it before another one."""
        connection = self._connection
        try:
            if verb in _GROUPED:
                if not connection.in_transaction:
                    connection.execute("BEGIN")
                    self._grouping = True
            elif self._grouping:
                self._grouping = False
                if connection.in_transaction:
                    connection.execute("COMMIT")
        except apsw.Error as error:
            raise self._fault(error) from error

    def _is_out_of_time(self) -> bool:
        self._stopped = time.monotonic() > self._end
        return self._stopped

    def _fault(self, error: apsw.Error) -> DatabaseError | StorageError:
        if self._stopped:
            return QueryTimeoutError(f"a statement of the seed ran longer than {STATEMENT_SECONDS:g} s")
        if self._refused is not None:
            return DatabaseError(f"{self._refused} is not allowed in a seed")
        if is_of_disk(getattr(error, "result", 0)):
            folder = self._path.parent
            return StorageError(
                f"cannot write the base in {folder}: {error}", remedy="No part of it was kept."
            )
        return DatabaseError(str(error))

    def _authorize(self, action: int, name: str | None, argument: str | None, *_where: Any) -> int:
        refusal = None
        if action == _PRAGMA:
            pragma = (name or "").lower()
            if pragma in _PRAGMAS_WITHOUT_EFFECT:
                return _IGNORE
            refusal = None if pragma in _PRAGMAS else f"PRAGMA {name}"
        elif action == _ATTACH and name:  # VACUUM attaches a database without a name
            refusal = "reaching another file (ATTACH, VACUUM INTO)"
        elif action == _FUNCTION and (argument or "").lower() in _FUNCTIONS:
            refusal = f"the function {argument}()"
        if refusal is None:
            return _OK
        self._refused = refusal
        return _DENY
