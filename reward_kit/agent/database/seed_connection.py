"""What a seed may do: the connection that seed SQL and ``def seed(db)`` write through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.database.sql_script import first_word, split_statements
from reward_kit.agent.database.statement import storable_parameters
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.row import Row
    from reward_kit.agent.database.seed_file import SeedFile
    from reward_kit.agent.database.sqlalchemy_result import StatementResult
    from reward_kit.agent.database.statement import Answer, Parameters

# codes of sqlite3_set_authorizer
_OK, _DENY, _IGNORE = 0, 1, 2
_PRAGMA, _ATTACH, _FUNCTION = 19, 24, 31

_GROUPED = frozenset(
    {
        "ALTER", "ANALYZE", "CREATE", "DELETE", "DROP", "INSERT", "REINDEX", "REPLACE", "SELECT", "UPDATE",
        "VALUES", "WITH",
    }
)  # fmt: skip
"""Statements that are run in a common transaction: one for each would cost several writes to the file."""

_PRAGMAS = frozenset(
    {
        "application_id", "auto_vacuum", "data_version", "defer_foreign_keys", "encoding",
        "foreign_key_check", "foreign_key_list", "foreign_keys", "freelist_count", "ignore_check_constraints",
        "index_info", "index_list", "index_xinfo", "integrity_check", "legacy_alter_table", "optimize",
        "page_count", "page_size", "quick_check", "recursive_triggers", "table_info", "table_list",
        "table_xinfo", "user_version",
    }
)  # fmt: skip
_PRAGMAS_WITHOUT_EFFECT = frozenset(
    {
        "cache_size", "cache_spill", "journal_mode", "journal_size_limit", "locking_mode", "mmap_size",
        "secure_delete", "synchronous", "temp_store", "wal_autocheckpoint",
    }
)  # fmt: skip
"""Dump tools write them; how the file is written is this package's business, so they are passed over."""

_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer"})


class SeedConnection:
    """A writable connection to the database that is being seeded.

    Refused, because bundles are shared between people: reading or writing other files (ATTACH, VACUUM INTO,
    extensions) and switching SQLite's safety off (``PRAGMA writable_schema`` and the like).
    """

    def __init__(self, file: SeedFile, randomness: Randomness) -> None:
        self._file = file
        self._grouping = False
        self._refused: str | None = None
        file.guard(self._authorize, randomness)

    def execute(self, sql: object, parameters: Parameters = None) -> StatementResult:
        """Run one statement (a ``str``, or SQLAlchemy's ``text()``) and give SQLAlchemy's ``Result``.

        ``DatabaseError`` with SQLite's message.
        """
        from reward_kit.agent.database.sqlalchemy_result import StatementResult, plain_sql

        if not isinstance(sql, str):
            sql, parameters = plain_sql(sql, parameters)
        return StatementResult(self.run(sql, parameters))

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
        """Run one statement.  ``DatabaseError`` with SQLite's message."""
        self._group(first_word(sql))
        self._refused = None
        if parameters is not None:
            parameters = storable_parameters(parameters)
        try:
            return self._file.run(sql, parameters)
        except DatabaseError as error:
            if self._refused is None:
                raise
            raise DatabaseError(f"{self._refused} is not allowed in a seed") from error.__cause__

    @property
    def is_left_open(self) -> bool:
        """Whether the seed has begun a transaction that it has not ended yet."""
        return self._file.in_transaction and not self._grouping

    def finish(self) -> None:
        """Commit and lift the guards; ``DatabaseError`` if the seed left a transaction of its own open."""
        if self.is_left_open:
            raise DatabaseError("a transaction is begun and never ended", remedy="Add COMMIT.")
        self._group("")
        self._file.unguard()

    def _group(self, verb: str) -> None:
        """Begin the common transaction before a statement that can be in it, end it before another one."""
        if verb in _GROUPED:
            if not self._file.in_transaction:
                self._file.run("BEGIN")
                self._grouping = True
        elif self._grouping:
            self._grouping = False
            if self._file.in_transaction:
                self._file.run("COMMIT")

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
