"""Mode "file": each fork is a complete SQLite file of its own, run by ``sqlite3`` of the standard library.

Not by ``apsw``: its SQLite is another one than that of ``sqlite3``, and two of them in one process undo
each other's locks on the same file.  ``db.engine`` and tools that open ``db.path`` use ``sqlite3``.

A tool call undoes what was written through ``db``.  A transaction that a tool commits through ``db.engine``
or another connection to ``db.path`` is the tool's own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import tempfile
import weakref
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.files import draft_beside, share_or_copy, temporary_folder
from reward_kit.agent.database.backend import Backend
from reward_kit.agent.database.base_image import BaseImage, seeded_with_foreign_keys
from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.delta import delta_of_file
from reward_kit.agent.database.determinism import Randomness
from reward_kit.agent.database.disk import MAKE_ROOM, fault_of_disk
from reward_kit.agent.database.file_engine import LOCK_SECONDS, LOCKED, EngineFactory, install_functions
from reward_kit.agent.database.guards import PROGRESS_STEPS, Guard, Limits, numeric_limits, several_statements
from reward_kit.agent.database.sql_text import describe_statement, without_tail
from reward_kit.agent.database.statement import Answer, fetch_rows, storable_parameters
from reward_kit.agent.database.table_diff import diff_databases
from reward_kit.errors import DatabaseError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from reward_kit.agent.database.backend import Mode
    from reward_kit.agent.database.statement import Parameters, Statement

_DEFENSIVE = 1010
"""SQLITE_DBCONFIG_DEFENSIVE, which sqlite3 names from Python 3.12 on."""
_BUSY, _LOCKED = 5, 6
_PLAIN = frozenset({type(None), int, float, str, bytes})


class _Mark(NamedTuple):
    version: tuple[int, int]
    total: Changes


_UNKNOWN = _Mark((-1, -1), Changes())


class FileBackend(Backend):
    """``file`` is the private copy of ``base``, in a temporary folder of its own; a base has none."""

    mode: Mode = "file"
    begin_sql = "BEGIN IMMEDIATE"
    is_shared = True
    can_reconnect = False
    guard: Guard

    def __init__(
        self,
        base: Path,
        file: Path | None = None,
        *,
        randomness: Randomness | None = None,
        now: datetime | None = None,
    ) -> None:
        self.randomness = randomness
        self.lost: StorageError | None = None
        self._base = base
        self._file = file
        self._now = now
        self._connection: sqlite3.Connection | None = None
        self._engine: AsyncEngine | None = None
        self._sync_engine: Engine | None = None
        self._growth = 0
        self._writes = 0
        self._known: _Mark | None = None
        self._cleanup = weakref.finalize(self, _remove_folder, file)

    @classmethod
    def open(cls, path: Path) -> FileBackend:
        """A base or a complete file."""
        base = path.resolve()
        try:
            with closing(_open_unchanging(base)) as connection:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            raise DatabaseError(f"cannot open the database: {error}", place=str(path)) from error
        return cls(base)

    @property
    def path(self) -> Path:
        return self._file or self._base

    @property
    def engine(self) -> AsyncEngine:
        if self._engine is None:
            self._engine = self._engines().asynchronous()
        return self._engine

    @property
    def sync_engine(self) -> Engine:
        if self._sync_engine is None:
            self._sync_engine = self._engines().blocking()
        return self._sync_engine

    def _engines(self) -> EngineFactory:
        if self._file is None:
            raise DatabaseError("a base has no engine", remedy="fork() it.")
        foreign_keys = seeded_with_foreign_keys(self._base)
        return EngineFactory(
            self._file, self.randomness, self._now, self.note_fault, foreign_keys=foreign_keys
        )

    @property
    def base_path(self) -> Path:
        return self._base

    @property
    def base_size(self) -> int:
        return self._base.stat().st_size

    def note_fault(self, error: BaseException) -> None:
        if self._file is not None and self.lost is None:
            self.lost = fault_of_disk(error, self._file, self._growth)

    # --- the connection ---

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    @property
    def in_transaction(self) -> bool:
        return self._connection is not None and self._connection.in_transaction

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._connection is not None, "it is connected"
        return self._connection

    def connect(self, limits: Limits) -> None:
        self._growth = limits.max_growth_bytes
        try:
            size = self.path.stat().st_size
            connection = _open_unchanging(self._base) if self._file is None else _open_file(self._file)
            if self._file is not None:
                _prepare(connection, foreign_keys=seeded_with_foreign_keys(self._base))
            page_size = connection.execute("PRAGMA page_size").fetchone()[0]
            pages = (size + limits.max_growth_bytes) // page_size
            connection.execute(f"PRAGMA max_page_count={pages}").fetchall()
        except (OSError, sqlite3.Error) as error:
            raise DatabaseError(f"cannot open the database: {error}", place=str(self.path)) from error
        install_functions(connection, self.randomness, self._now)
        if hasattr(connection, "setlimit"):  # Python 3.11
            for limit, value in numeric_limits(limits):
                connection.setlimit(limit, value)
        if hasattr(connection, "setconfig"):  # Python 3.12
            connection.setconfig(_DEFENSIVE, True)
        self.guard = Guard(limits, size)
        connection.set_authorizer(self.guard.authorizer)
        connection.set_progress_handler(self.guard.watch, PROGRESS_STEPS)
        self._connection = connection

    def disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def interrupt(self) -> None:
        connection = self._connection
        if connection is not None:
            connection.interrupt()

    def control(self, sql: str) -> None:
        self.query(sql)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with self._faults():
            return self._open.execute(sql).fetchall()

    # --- statements ---

    def run(self, statement: Statement) -> Answer:
        guard = self.guard
        sql = statement.sql
        if len(sql) > guard.limits.max_sql_bytes:  # SQLite's own limit can only be set from Python 3.11 on
            raise DatabaseError("the statement is too long")
        text = describe_statement(sql)
        guard.watch.start(statement.ticket)
        statement.writes = False
        try:
            with self._faults():
                guard.admit(statement, reads=text.reads, returns_rows=text.reads)
                self._writes += statement.writes
                cursor = self._execute(statement)
                names = cursor.description
                values = self._fetch(cursor, first=statement.first, reads=text.reads) if names else []
                changed = cursor.rowcount if text.changes_rows else -1
                last = cursor.lastrowid
                cursor.close()
        finally:
            guard.watch.stop()
        columns = tuple([name[0] for name in names]) if names else None
        return Answer(columns, values, changed, last or 0)

    def _execute(self, statement: Statement) -> sqlite3.Cursor:
        # sqlite3 takes a second semicolon for a second statement
        sql = without_tail(statement.sql) if ";" in statement.sql else statement.sql
        try:
            if statement.many is not None:
                return self._open.executemany(sql, map(_bindable, statement.many))
            return self._open.execute(sql, _bindable(statement.parameters))
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
        return fetch_rows(cursor, self.guard.limits)

    @contextlib.contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise self._translate(error) from error

    def _translate(self, error: Exception) -> Exception:
        message = str(error)
        self.note_fault(error)
        if message == "interrupted":
            return self.guard.interrupted()
        if "one statement at a time" in message:
            return several_statements()
        if message.startswith(LOCKED):
            return DatabaseError(
                f"{message}: another connection (of db.engine, or to db.path) is in a transaction",
                remedy="In one call, write either through `db` or through that.",
            )
        return self.guard.denied(message)

    # --- changes: no hook tells of them, so the file is compared with its base ---

    def changes(self) -> Changes:
        return self._compared().total

    def known_changes(self) -> None:
        return None

    def mark(self, *, recorded: bool) -> _Mark:
        return self._compared() if recorded else _UNKNOWN

    def _compared(self) -> _Mark:
        # the second number changes when another connection commits
        version = (self._writes, self.query("PRAGMA data_version")[0][0])
        if self._known is None or self._known.version != version:
            total = Changes()
            if self._file is not None:
                with self._faults(), closing(_open_unchanging(self._base)) as base:
                    total = diff_databases(base.execute, self._open.execute)
            self._known = _Mark(version, total)
        return self._known

    def since(self, mark: _Mark) -> Changes:
        now = self._compared()
        return Changes() if now.version == mark.version else now.total.minus(mark.total)

    def restore(self, mark: object) -> None:  # noqa: ARG002 - SQLite did it
        self._writes += 1

    # --- copies ---

    def fork(self, seed: int | None, now: datetime | None) -> FileBackend:
        folder = temporary_folder("database")
        file = folder / "rollout.db"
        try:
            if self._file is None:
                with self._base.open("rb") as origin, file.open("xb") as copy:
                    share_or_copy(origin, copy)
            else:
                self._copy_to(file)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise StorageError(
                f"cannot copy the database: {error.strerror}", place=str(folder.parent), remedy=MAKE_ROOM
            ) from error
        inherited = self.randomness.copy() if self.randomness is not None else None
        randomness = inherited if seed is None else Randomness(seed)
        return FileBackend(self._base, file, randomness=randomness, now=now or self._now)

    def reader(self) -> FileBackend:
        reader = FileBackend(self._base, self._file, randomness=self.randomness, now=self._now)
        reader._cleanup.detach()
        return reader

    def export(self, path: Path) -> Path:
        with draft_beside(path) as temporary:
            self._copy_to(temporary)
            with temporary.open("rb+") as written:
                os.fsync(written.fileno())
            temporary.replace(path)
        return path

    def delta(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            return delta_of_file(self.export(Path(folder) / "state.db"), BaseImage.open(self._base))

    def close(self) -> None:
        for engine in (self._sync_engine, self._engine and self._engine.sync_engine):
            if engine is not None:
                engine.dispose(close=False)  # its pool holds no connections that would have to be closed
        self._cleanup()

    def _copy_to(self, target: Path) -> None:
        # by SQLite and not by reading the file: closing a file drops all locks that this process holds on it
        source = _open_unchanging(self._base) if self._file is None else _open_file(self._file)
        try:
            with closing(source), closing(_open_file(target)) as copy:
                _copy_content(source, copy)
                copy.execute("PRAGMA journal_mode=DELETE").fetchall()
        except sqlite3.Error as error:
            raise DatabaseError(f"cannot copy the database: {error}", place=str(target)) from error


def _open_file(path: Path) -> sqlite3.Connection:
    """A connection that leaves transactions to its user, for any thread."""
    return sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)


def _open_unchanging(path: Path) -> sqlite3.Connection:
    """A connection for reading a file that nobody writes to, hence without locks."""
    address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)


def _copy_content(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Make ``target`` equal to what ``source`` committed; ``sqlite3.OperationalError`` if one is in use."""
    locked = 0

    def check(status: int, _remaining: int, _total: int) -> None:
        nonlocal locked
        locked += status & 0xFF in (_BUSY, _LOCKED)
        if locked > 2:  # sqlite3 itself would try for ever, every 0.25 s
            raise sqlite3.OperationalError(LOCKED)

    source.backup(target, progress=check)


def _prepare(connection: sqlite3.Connection, *, foreign_keys: bool) -> None:
    """Settings for a private copy of a base: safe from a killed process, not from a power failure."""
    for pragma in (
        "journal_mode=TRUNCATE",
        "synchronous=OFF",
        "temp_store=MEMORY",
        "cache_spill=OFF",  # a spilled page would lock out readers before the commit
        f"foreign_keys={'ON' if foreign_keys else 'OFF'}",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _bindable(parameters: Parameters) -> Mapping[str, Any] | Sequence[Any]:
    if parameters is None:
        return ()
    values = parameters.values() if isinstance(parameters, dict) else parameters
    if isinstance(parameters, (dict, list, tuple)) and all(type(value) in _PLAIN for value in values):
        return parameters
    return storable_parameters(parameters) or ()


def _remove_folder(file: Path | None) -> None:
    if file is not None:
        shutil.rmtree(file.parent, ignore_errors=True)
