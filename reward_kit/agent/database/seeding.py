"""Seeding: SQL text or a script becomes a base, a finished read-only SQLite file."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import apsw

from reward_kit.agent.base.files import draft_beside
from reward_kit.agent.base.text import cut
from reward_kit.agent.database.connection import broken_reference, why_refused
from reward_kit.agent.database.determinism import Randomness, read_moment
from reward_kit.agent.database.guard import PRAGMAS, UNSAFE_FUNCTIONS, describe_statement
from reward_kit.agent.database.statement import ExecuteResult, SyncStatements, plain, storable_parameters
from reward_kit.agent.database.vfs import FOREIGN_KEYS_ON, create_file, freeze_clock, install_function
from reward_kit.errors import (
    BundleError,
    DatabaseError,
    QueryTimeoutError,
    RewardKitError,
    StorageError,
    UsageError,
)

if TYPE_CHECKING:
    from sqlalchemy import TextClause

    from reward_kit.agent.database.statement import Parameters

STATEMENT_SECONDS = 600.0
"""Limit of one statement of a seed: far above any real one, so that one without an end has one."""
_RANDOM_SEED = 0
"""The same for all seeds: an edit in one place of a seed leaves the random values before it as they were."""
_QUOTED = 100
"""Longest beginning of a faulty statement (characters) that an error quotes."""
_HEAD = 10_000
"""Characters at the beginning of a dump in which its program names itself."""
_STEPS_BETWEEN_LOOKS = 100_000
_OPENING = (
    "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF; "
    "PRAGMA cache_size=-65536"
)

_GROUPED = frozenset(
    {
        "ALTER", "ANALYZE", "CREATE", "DELETE", "DROP", "INSERT", "REINDEX", "REPLACE", "SELECT",
        "UPDATE", "VALUES",
    }
)  # fmt: skip
"""Statements that are run in a common transaction: one for each would cost several writes to the file."""
_PRAGMAS = PRAGMAS | {
    "auto_vacuum", "ignore_check_constraints", "legacy_alter_table", "optimize", "recursive_triggers",
}  # fmt: skip
_PRAGMAS_WITHOUT_EFFECT = frozenset(
    {
        "cache_size", "cache_spill", "journal_mode", "journal_size_limit", "locking_mode",
        "mmap_size", "secure_delete", "synchronous", "temp_store", "wal_autocheckpoint", "writable_schema",
    }
)  # fmt: skip
"""Dump tools write them; this package decides how the file is written, so they are passed over."""

# sqlite3 and Python's iterdump write virtual tables, and then their shadow tables, in this form
_DUMPED = re.compile(
    r"INSERT INTO sqlite_(?:schema|master)\(type,name,tbl_name,rootpage,sql\)\s*(VALUES\('table',.*)",
    re.DOTALL,
)
_SHADOW = re.compile(r"""CREATE TABLE (?:IF NOT EXISTS )?(?:'((?:[^']|'')+)'|"((?:[^"]|"")+)")""")
_OTHER_DUMP = re.compile(
    r"-- (?P<name>PostgreSQL|MySQL|MariaDB)( database)? dump|(?P<mysql>\) ENGINE=|/\*!\d{5} )"
    r"|(?P<postgres>\bSELECT pg_catalog\.|\bCOPY \S+ \([^)]*\) FROM stdin)"
)
_BLANK = re.compile(r"(?:\s+|;|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
# an unclosed quote or comment runs to the end of the script: SQLite then says what is wrong with it
_STOP = re.compile(
    r"""'[^']*'?|"[^"]*"?|`[^`]*`?|\[[^\]]*\]?|--[^\n]*|/\*.*?(?:\*/|\Z)|(?P<semicolon>;)""", re.DOTALL
)


class SeedConnection(SyncStatements):
    """A writable connection to the database that is being seeded: ``db`` of ``def seed(db)``.

    Refused, because bundles are shared between people: reading or writing other files (ATTACH, VACUUM INTO,
    extensions) and changing the schema's own table. A dump may fill the shadow tables of virtual tables.
    """

    def __init__(self, path: Path, randomness: Randomness) -> None:
        self._path = path
        self._grouping = False
        self._refused: str | None = None
        self._end = 0.0
        self._stopped = False
        self._has_shadows = False
        self._connection = connection = create_file(path)
        connection.execute(_OPENING).fetchall()
        connection.authorizer = self._authorize
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        install_function(connection, "random", randomness.integer)
        install_function(connection, "randomblob", randomness.blob, 1)
        # Python looks at Ctrl-C only while it runs itself
        connection.set_progress_handler(self._is_out_of_time, _STEPS_BETWEEN_LOOKS)

    def _run(self, sql: str | TextClause, params: Parameters, *, first: bool = False) -> ExecuteResult:
        result = self.run(*plain(sql, params))
        if first:
            del result.values[1:]
        return result

    def executemany(self, sql: str, rows: Iterable[Parameters]) -> int:
        """Run one statement once for each of ``rows``; the number of rows changed."""
        return sum(max(0, self.run(sql, row).rowcount) for row in rows)

    def executescript(self, script: str) -> None:
        """Run all statements of ``script``."""
        for statement in split_statements(script):
            self.run(statement.sql)

    def commit(self) -> None:
        """Do nothing: what a seed wrote is kept if the whole of it ends without an error."""

    def run(self, sql: str, parameters: Parameters = None) -> ExecuteResult:
        """Run one statement.

        ``DatabaseError`` with SQLite's message, ``StorageError`` if the disk is the cause.
        """
        columns: list[tuple[str, ...]] = []

        def note_columns(cursor: apsw.Cursor, _sql: str, _bindings: object) -> bool:
            columns.append(tuple([column[0] for column in cursor.get_description()]))
            return True

        before = self._connection.total_changes()
        self._end = time.monotonic() + STATEMENT_SECONDS
        self._stopped, self._refused = False, None
        cursor = self._connection.cursor()
        cursor.exec_trace = note_columns
        try:
            self._group(describe_statement(sql).verb)
            sql = self._undumped(sql)
            # a seed's statements are many and differ: keeping them prepared would gain nothing
            cursor.execute(sql, storable_parameters(parameters), can_cache=parameters is not None)
            rows: list[tuple[Any, ...]] = cursor.fetchall()
        except apsw.ConstraintError as error:
            if "FOREIGN KEY" not in str(error):
                raise self._fault(error) from error
            raise DatabaseError(why_refused(self._connection, sql, parameters)) from error
        except apsw.Error as error:
            raise self._fault(error) from error
        names = columns[-1] if columns else ()
        changed = self._connection.total_changes() - before
        if names and not changed:
            changed = -1  # a query, for which SQLAlchemy knows no number of changed rows
        return ExecuteResult(names or None, rows, changed, self._connection.last_insert_rowid())

    def _undumped(self, sql: str) -> str:
        """``sql``, or the ``CREATE VIRTUAL TABLE`` that a dump writes as a row of the schema."""
        if dumped := _DUMPED.match(sql):
            ((*_, made),) = self._connection.execute(dumped[1]).fetchall()
            if str(made).upper().startswith("CREATE VIRTUAL TABLE"):
                self._connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)  # finish() checks what was written
                self._has_shadows = True
                return str(made)
        elif self._has_shadows and (shadow := _SHADOW.match(sql)):
            listed = "SELECT name FROM pragma_table_list(?) WHERE schema = 'main' AND type = 'shadow'"
            name = (shadow[1] or shadow[2]).replace("''", "'").replace('""', '"')
            if self._connection.execute(listed, [name]).fetchall():
                quoted = name.replace(
                    '"', '""'
                )  # a savepoint makes full-text tables write what they hold back
                self._connection.execute(f'SAVEPOINT dump; RELEASE dump; DROP TABLE "{quoted}"').fetchall()
        return sql

    @property
    def is_left_open(self) -> bool:
        """True if a transaction of the seed is open."""
        return self._connection.in_transaction and not self._grouping

    def finish(self) -> None:
        """Leave the file as forks need it: no journal, the state of foreign keys noted.

        ``DatabaseError`` if the seed left a transaction open or broke a foreign key. There is no ANALYZE:
        every fork would load the statistics when it opens. There is no VACUUM: it renumbers rowids, by which
        other tables may refer to these rows. A seed that wants them runs them itself.
        """
        if self.is_left_open:
            raise DatabaseError("a transaction is begun and never ended", remedy="Add COMMIT.")
        self._connection.authorizer = None
        if self._has_shadows and (fault := self._value("PRAGMA integrity_check")) != "ok":
            raise DatabaseError(
                f"the dump's virtual tables are damaged: {fault}",
                remedy="Keep CREATE VIRTUAL TABLE and insert the rows; drop the lines of its shadow tables.",
            )
        if self._value("PRAGMA foreign_keys"):
            if fault := broken_reference(self._connection):
                raise DatabaseError(fault)
            if self._value("PRAGMA application_id"):
                raise DatabaseError(
                    "foreign_keys=ON and an application_id of the seed's own exclude each other",
                    remedy="A base remembers in this field that foreign keys are on: leave it unset.",
                )
            self.run(f"PRAGMA application_id={FOREIGN_KEYS_ON}")
        else:
            # writes page 1 even if the seed is empty: a file without pages is no database
            self.run(f"PRAGMA user_version={self._value('PRAGMA user_version')}")
        self.run("PRAGMA journal_mode=DELETE")

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _value(self, sql: str) -> Any:
        return self.run(sql).values[0][0]

    def _group(self, verb: str) -> None:
        """Begin the common transaction before a statement that can be in it, end it before another one."""
        connection = self._connection
        if verb in _GROUPED and not connection.in_transaction:
            connection.execute("BEGIN")
            self._grouping = True
        elif self._grouping and verb not in _GROUPED:
            self._grouping = False
            if connection.in_transaction:
                connection.execute("COMMIT")

    def _is_out_of_time(self) -> bool:
        self._stopped = time.monotonic() > self._end
        return self._stopped

    def _fault(self, error: apsw.Error) -> DatabaseError | StorageError:
        if self._stopped:
            return QueryTimeoutError(f"a statement of the seed ran longer than {STATEMENT_SECONDS:g} s")
        if self._refused is not None:
            return DatabaseError(f"{self._refused} is not allowed in a seed")
        if isinstance(error, apsw.IOError | apsw.FullError | apsw.CantOpenError):
            fault = f"cannot write the base in {self._path.parent}: {error}"
            return StorageError(fault, remedy="No part of it was kept.")
        return DatabaseError(str(error))

    def _authorize(self, action: int, name: str | None, argument: str | None, *_where: Any) -> int:
        refusal = None
        if action == apsw.SQLITE_PRAGMA:
            pragma = (name or "").lower()
            if pragma in _PRAGMAS_WITHOUT_EFFECT:
                return apsw.SQLITE_IGNORE
            refusal = None if pragma in _PRAGMAS else f"PRAGMA {name}"
            if pragma == "foreign_keys" and argument and self.is_left_open:
                refusal = "PRAGMA foreign_keys, which has no effect between BEGIN and COMMIT,"
        elif action == apsw.SQLITE_ATTACH and name:  # VACUUM attaches a database without a name
            refusal = "reaching another file (ATTACH, VACUUM INTO)"
        elif action == apsw.SQLITE_FUNCTION and (argument or "").lower() in UNSAFE_FUNCTIONS:
            refusal = f"the function {argument}()"
        if refusal is None:
            return apsw.SQLITE_OK
        self._refused = refusal
        return apsw.SQLITE_DENY


SeedScript = Callable[[SeedConnection], None]


def seed_base(
    path: str | os.PathLike[str],
    sql: str | None = "",
    *,
    script: SeedScript | None = None,
    origin: str = "seed SQL",
    now: datetime | str | None = None,
) -> Path:
    """Run ``sql``, then ``script``, on an empty database and publish it at ``path``; returns the path.

    The same seed gives the same rows: ``random()`` and ``randomblob()`` start from a fixed seed, and the
    clock stands still at ``now``, or else at the moment the seeding began.

    ``BundleError`` with the place ``origin:LINE`` for a faulty statement, ``StorageError`` if the file cannot
    be written, ``UsageError`` for arguments of the wrong kind.  An older file at ``path`` then stays.
    """
    if sql is not None and not isinstance(sql, str):
        remedy = "Pass a function as script=, and of a file what it says: path.read_text()."
        raise UsageError(f"sql= takes text, not a {type(sql).__name__}", remedy=remedy)
    if script is not None and (not callable(script) or inspect.iscoroutinefunction(script)):
        raise UsageError("script= takes a plain function", remedy="It is called with the open database.")
    target = Path(path)
    if not target.parent.is_dir():
        raise StorageError(f"there is no folder {target.parent}", place=str(target), remedy="Make it first.")
    moment = read_moment(now) or datetime.now(UTC)
    with draft_beside(target) as temporary:
        temporary.touch(exist_ok=False)  # SQLite's message for a read-only folder is less clear
        freeze_clock(moment.timestamp())
        try:
            _fill(temporary, sql or "", script, origin)
        finally:
            freeze_clock(None)
        with temporary.open("r+b") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o444)
        temporary.replace(target)
    return target


def _fill(path: Path, sql: str, script: SeedScript | None, origin: str) -> None:
    with contextlib.closing(SeedConnection(path, Randomness(_RANDOM_SEED))) as seed:
        if "\0" in sql:
            line = sql[: sql.index("\0")].count("\n") + 1
            raise BundleError("a NUL character, at which SQLite would stop reading", place=f"{origin}:{line}")
        dump = _OTHER_DUMP.search(sql[:_HEAD])
        for statement in split_statements(sql):
            _run_statement(seed, statement, origin, dump)
        place = origin if seed.is_left_open else getattr(script, "place", origin)
        if script is not None:
            _run_script(seed, script, origin)
        try:
            seed.finish()
        except DatabaseError as error:
            raise BundleError(error.fault, place=place, remedy=error.remedy) from error


def _run_statement(
    seed: SeedConnection, statement: ScriptStatement, origin: str, dump: re.Match[str] | None
) -> None:
    try:
        seed.run(statement.sql)
    except DatabaseError as error:
        offset = max(0, getattr(error.__cause__, "error_offset", 0))
        line = statement.line + statement.sql.encode("utf-8", "surrogatepass")[:offset].count(b"\n")
        remedy = error.remedy
        if statement.sql.startswith("."):
            remedy = "Lines with a dot are commands of the program sqlite3."
        elif dump:
            name = dump["name"] or ("MySQL" if dump["mysql"] else "PostgreSQL")
            rows = "mysqldump --no-create-info --compact"
            if name == "PostgreSQL":
                rows = "pg_dump --data-only --column-inserts"
            remedy = (
                f"This is a dump of {name}: write CREATE TABLE in SQLite's SQL, and take the INSERT lines "
                f'of {rows}, without the name of the schema ("public.").'
            )
        raise BundleError(
            f"{' '.join(error.fault.split())}, in: {cut(' '.join(statement.sql.split()), _QUOTED)}",
            place=f"{origin}:{line}",
            remedy=remedy,
        ) from error


def _run_script(seed: SeedConnection, script: SeedScript, origin: str) -> None:
    try:
        script(seed)
    except RewardKitError as error:
        if isinstance(error.__cause__, StorageError):  # a script's object takes all errors for its own fault
            raise error.__cause__ from None
        if isinstance(error, BundleError | StorageError):
            raise
        raise BundleError(error.fault, place=origin, remedy=error.remedy) from error
    except Exception as error:  # the border to foreign code: what it raises is a fault of the bundle
        raise BundleError(f"{type(error).__name__}: {error}", place=origin) from error


class ScriptStatement(NamedTuple):
    """``line`` (from 1) is where ``sql`` begins in the script; blanks and comments before it are left out."""

    line: int
    sql: str


def split_statements(script: str) -> Iterator[ScriptStatement]:
    """The statements of ``script`` in order, each with its semicolon.

    Semicolons in strings, quoted names, comments and the bodies of triggers do not end a statement.  What
    follows the last semicolon is a statement too, complete or not.
    """
    script = script.removeprefix("\ufeff")
    position, line = 0, 1
    while (blank := _BLANK.match(script, position)) and blank.end() < len(script):
        start = blank.end()
        # SQLite's own judgement knows that the semicolons in the body of a trigger end nothing
        ends = (stop.end() for stop in _STOP.finditer(script, start) if stop["semicolon"])
        end = next((end for end in ends if sqlite3.complete_statement(script[start:end])), len(script))
        line += script.count("\n", position, start)
        yield ScriptStatement(line, script[start:end])
        line += script.count("\n", start, end)
        position = end
