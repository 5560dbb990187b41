"""Mode "file": each fork is a complete, separate SQLite file, run by ``sqlite3`` of the standard library.

Not by ``apsw``: its SQLite is another one than that of ``sqlite3``, and two of them in one process undo
each other's locks on the same file.  ``db.engine`` and tools that open ``db.path`` use ``sqlite3``.

A tool call undoes what was written through ``db``.  A transaction that a tool commits through ``db.engine``
or another connection to ``db.path`` is the tool's own.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
import weakref
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.files import draft_beside, share_or_copy, temporary_folder
from reward_kit.agent.database.changes import NO_CHANGES, Changes
from reward_kit.agent.database.determinism import Randomness, install_functions
from reward_kit.agent.database.file_access import (
    LOCKED,
    MAKE_ROOM,
    copy_content,
    disk_fault,
    open_file,
    open_unchanging,
)
from reward_kit.agent.database.guard import (
    PROGRESS_STEPS,
    Guard,
    describe_statement,
    numeric_limits,
    several_statements,
    without_tail,
)
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.recorder import diff_databases
from reward_kit.agent.database.statement import ExecuteResult, Limits, fetch_result, storable_parameters
from reward_kit.agent.database.vfs import BaseImage, foreign_keys_on
from reward_kit.errors import DatabaseError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from reward_kit.agent.database.database import Mode
    from reward_kit.agent.database.statement import Statement

_DEFENSIVE = 1010
"""SQLITE_DBCONFIG_DEFENSIVE, which sqlite3 names from Python 3.12 on."""
_UNTOUCHED = 0
"""Time of change (ns) that a private file gets when it is made: another one shows that it was written to."""


class FileStore:
    """``file`` is the private copy of ``base``; a base, which is only read, has none.

    Its methods are those of ``OverlayStore``.  ``known`` are the changes of the file as it is now.  Only an
    ``owned`` file is written to and removed.
    """

    mode: Mode = "file"
    begin_sql = "BEGIN IMMEDIATE"
    is_shared = True

    def __init__(
        self,
        base: Path,
        limits: Limits,
        file: Path | None = None,
        randomness: Randomness | None = None,
        now: datetime | None = None,
        *,
        owned: bool = False,
        known: Changes | None = None,
    ) -> None:
        self.limits = limits
        self.in_use = threading.Lock()
        self.randomness = randomness or Randomness(None)
        self.now = now
        self.lost: StorageError | None = None
        self.base_path, self.base_size = base, base.stat().st_size
        self.path = file or base
        self._guard = Guard(limits, self.path.stat().st_size)
        self._owned = owned
        self._writes = 0
        self._known = NO_CHANGES if file is None else known
        self._known_at: tuple[int, int] | None = None
        if owned:
            self._cleanup = weakref.finalize(self, shutil.rmtree, self.path.parent, ignore_errors=True)

    @classmethod
    def open(cls, path: Path, limits: Limits, base: Path | None = None) -> FileStore:
        """A base or a complete file; with ``base`` its changes count from that base."""
        file = path.resolve()
        try:
            with closing(open_unchanging(file)) as connection:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            return cls(file, limits) if base is None else cls(base.resolve(), limits, file)
        except (sqlite3.Error, OSError) as error:
            raise DatabaseError(f"cannot open the database: {error}", place=str(path)) from error

    @cached_property
    def engine(self) -> AsyncEngine:
        from sqlalchemy.ext.asyncio import create_async_engine

        engine: AsyncEngine = self._engine(create_async_engine, "sqlite+aiosqlite")
        return engine

    @cached_property
    def sync_engine(self) -> Engine:
        from sqlalchemy import create_engine

        engine: Engine = self._engine(create_engine, "sqlite")
        return engine

    @property
    def in_transaction(self) -> bool:
        return "_connection" in vars(self) and self._connection.in_transaction

    def note_fault(self, error: BaseException) -> None:
        if self._owned and self.lost is None:
            self.lost = disk_fault(error, self.path, self.limits.max_growth_bytes)

    def _engine(self, create: Callable[..., Any], driver: str) -> Any:
        if not self._owned:
            raise DatabaseError("a base has no engine", remedy="fork() it.")
        from reward_kit.agent.database.sqlalchemy_api import make_engine

        return make_engine(create, driver, self.path, self._prepare_engine, self.note_fault)

    def _prepare_engine(self, connection: Any) -> None:
        install_functions(connection, self.randomness, self.now)
        cursor = connection.cursor()
        for pragma in ("synchronous=OFF", self._foreign_keys):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @property
    def _foreign_keys(self) -> str:
        with self.base_path.open("rb") as file:
            return f"foreign_keys={'ON' if foreign_keys_on(file.read(100)) else 'OFF'}"

    @cached_property
    def _connection(self) -> sqlite3.Connection:
        limits = self.limits
        try:
            size = self.path.stat().st_size
            connection = open_file(self.path) if self._owned else open_unchanging(self.path)
            page_size = connection.execute("PRAGMA page_size").fetchone()[0]
            pragmas = [f"max_page_count={(size + limits.max_growth_bytes) // page_size}"]
            if self._owned:
                # safe from a killed process, not from a power failure; a spilled page would lock out readers
                pragmas += ["journal_mode=TRUNCATE", "synchronous=OFF", "temp_store=MEMORY"]
                pragmas += ["cache_spill=OFF", self._foreign_keys]
            for pragma in pragmas:
                connection.execute(f"PRAGMA {pragma}").fetchall()
        except (OSError, sqlite3.Error) as error:
            raise DatabaseError(f"cannot open the database: {error}", place=str(self.path)) from error
        install_functions(connection, self.randomness, self.now)
        for limit, value in numeric_limits(limits):
            connection.setlimit(limit, value)
        if hasattr(connection, "setconfig"):  # Python 3.12
            connection.setconfig(_DEFENSIVE, True)
        connection.set_authorizer(self._guard.authorize)
        connection.set_progress_handler(self._guard.progress, PROGRESS_STEPS)
        return connection

    def control(self, sql: str) -> None:
        self.query(sql)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql).fetchall()
        except sqlite3.Error as error:
            raise self._translated(error) from error

    def run(self, statement: Statement) -> ExecuteResult:
        text = describe_statement(statement.sql)
        draws = self.randomness.position
        self._guard.statement = statement
        try:
            if not text.reads:
                self._guard.admit(statement)
                self._writes += 1
            cursor = self._execute(statement)
            names = cursor.description
            values = fetch_result(cursor, statement, self.limits, reads=text.reads) if names else []
            changed = cursor.rowcount if text.changes_rows else -1
            last = cursor.lastrowid
            cursor.close()
        except (sqlite3.Error, sqlite3.Warning) as error:
            if self._guard.stopped == "budget":
                self.randomness.position = draws  # it starts again, elsewhere
            raise self._translated(error) from error
        finally:
            self._guard.statement = self._guard.stopped = None
        return ExecuteResult(tuple([name[0] for name in names or ()]) or None, values, changed, last or 0)

    def _execute(self, statement: Statement) -> sqlite3.Cursor:
        # sqlite3 takes a second semicolon for a second statement
        sql = without_tail(statement.sql) if ";" in statement.sql else statement.sql
        try:
            if statement.many is not None:
                return self._connection.executemany(sql, map(storable_parameters, statement.many))
            return self._connection.execute(sql, storable_parameters(statement.parameters))
        except (OverflowError, ValueError) as error:
            raise DatabaseError(str(error)) from error

    def _translated(self, error: Exception) -> Exception:
        self.note_fault(error)
        message = str(error)
        if "one statement at a time" in message:
            return several_statements()
        if message.startswith(LOCKED):
            return DatabaseError(
                f"{message}: another connection (of db.engine, or to db.path) is in a transaction",
                remedy="In one call, write either through `db` or through that.",
            )
        return self._guard.error(message)

    def changes(self) -> Changes:
        # no hook reports them, so the file is compared with its base
        # the second number changes when another connection commits
        version = (self._writes, self.query("PRAGMA data_version")[0][0]) if self._owned else None
        if self._known_at is None and not self._writes and self.path.stat().st_mtime_ns == _UNTOUCHED:
            self._known_at = version
        if self._known is None or self._known_at != version:
            self._known, self._known_at = self._compared(), version
        return self._known

    def _compared(self) -> Changes:
        try:
            with closing(open_unchanging(self.base_path)) as base:
                return Changes.of(diff_databases(base.execute, self._connection.execute))
        except UnicodeDecodeError as error:
            raise DatabaseError(f"a text in the database is not UTF-8: {error}") from error
        except sqlite3.Error as error:
            raise self._translated(error) from error

    @property
    def recorder(self) -> FileStore:
        return self

    missed = None

    def mark(self, *, recorded: bool) -> tuple[int, Changes]:
        return self.randomness.position, self.changes() if recorded else NO_CHANGES

    def since(self, mark: tuple[int, Changes]) -> Changes:
        total = self.changes()
        return NO_CHANGES if total is mark[1] else total.minus(mark[1])

    def restore(self, mark: tuple[int, Changes]) -> None:
        self._writes += 1
        self.randomness.position = mark[0]

    def fork(self, seed: int | Randomness | None, now: datetime | None) -> FileStore:
        folder = temporary_folder("database")
        file = folder / "rollout.db"
        try:
            if self._owned:
                self._copy_to(file)
            else:
                with self.path.open("rb") as origin, file.open("xb") as copy:
                    share_or_copy(origin, copy)
            os.utime(file, ns=(_UNTOUCHED, _UNTOUCHED))
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise StorageError(
                f"cannot copy the database: {error.strerror}", place=str(folder.parent), remedy=MAKE_ROOM
            ) from error
        randomness = self.randomness.fork(seed)
        known = self.changes() if self._owned else self._known
        return FileStore(
            self.base_path, self.limits, file, randomness, now or self.now, owned=True, known=known
        )

    def reader(self) -> FileStore:
        return FileStore(
            self.base_path, self.limits, self.path, self.randomness, self.now, known=self.changes()
        )

    def export(self, path: Path) -> None:
        with draft_beside(path) as temporary:
            self._copy_to(temporary)
            with temporary.open("rb+") as written:
                os.fsync(written.fileno())
            temporary.replace(path)

    def delta(self) -> bytes:
        with tempfile.TemporaryDirectory() as folder:
            state = Path(folder) / "state.db"
            self.export(state)
            return Overlay.between(BaseImage.open(self.base_path), BaseImage.open(state)).delta()

    def close(self) -> None:
        """Close the connection, which loses an open transaction, and remove a private file."""
        connection = vars(self).pop("_connection", None)
        if connection is not None:
            connection.close()
        if self._owned:
            self._cleanup()

    def _copy_to(self, target: Path) -> None:
        # by SQLite and not by reading the file: closing a file drops all locks that this process holds on it
        source = open_file(self.path) if self._owned else open_unchanging(self.path)
        try:
            with closing(source), closing(open_file(target)) as copy:
                copy_content(source, copy)
                copy.execute("PRAGMA journal_mode=DELETE").fetchall()
        except sqlite3.Error as error:
            raise DatabaseError(f"cannot copy the database: {error}", place=str(target)) from error
