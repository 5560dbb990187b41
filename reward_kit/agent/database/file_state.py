"""A database in mode "file": each fork is a complete SQLite file of its own."""

from __future__ import annotations

import os
import shutil
import sqlite3
import weakref
from contextlib import closing
from typing import TYPE_CHECKING

from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.determinism import Randomness
from reward_kit.agent.database.disk import MAKE_ROOM, fault_of_disk
from reward_kit.agent.database.file_driver import FileDriver, copy_content, open_file, open_unchanging
from reward_kit.agent.database.publish import share_or_copy, temporary_beside
from reward_kit.agent.temporary_folder import temporary_folder
from reward_kit.errors import DatabaseError, StorageError

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from reward_kit.agent.database.content import Keep, Mode
    from reward_kit.agent.database.file_engine import EngineFactory
    from reward_kit.agent.database.guards import Limits


class FileState:
    """``file`` is the private copy of ``base``, in a temporary folder of its own; a base has none.

    ``earlier`` are the changes that the copy holds already, ``None`` if they are not known.
    """

    mode: Mode = "file"

    def __init__(
        self,
        base: Path,
        file: Path | None = None,
        *,
        randomness: Randomness | None = None,
        now: datetime | None = None,
        earlier: Changes | None = None,
    ) -> None:
        self.randomness = randomness
        self.lost: StorageError | None = None
        self._base = base
        self._file = file
        self._now = now
        self._earlier = earlier
        self._driver: FileDriver | None = None
        self._engine: AsyncEngine | None = None
        self._sync_engine: Engine | None = None
        self._shared = False
        self._growth = 0
        self._cleanup = weakref.finalize(self, _remove_folder, file)

    @classmethod
    def open(cls, path: Path) -> FileState:
        """A base or a complete file."""
        base = path.resolve()
        try:
            with closing(open_unchanging(base)) as connection:
                connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.Error as error:
            remedy = None if path.suffix != ".dbd" else 'A delta needs the package apsw and mode "overlay".'
            raise DatabaseError(
                f"cannot open the database: {error}", place=str(path), remedy=remedy
            ) from error
        return cls(base)

    @property
    def path(self) -> Path:
        """The file; from now on others are expected to write to it."""
        if self._file is None:
            return self._base
        self._share()
        return self._file

    @property
    def engine(self) -> AsyncEngine:
        """A SQLAlchemy engine on the file, made when it is first asked for."""
        if self._engine is None:
            self._engine = self._engines().asynchronous()
        self._share()
        return self._engine

    @property
    def sync_engine(self) -> Engine:
        """The same for code that does not await."""
        if self._sync_engine is None:
            self._sync_engine = self._engines().blocking()
        self._share()
        return self._sync_engine

    def _engines(self) -> EngineFactory:
        if self._file is None:
            raise DatabaseError("a base has no engine", remedy="fork() it.")
        from reward_kit.agent.database.file_engine import EngineFactory

        return EngineFactory(self._file, self._base, self.randomness, self._now, note_fault=self.note_fault)

    @property
    def base_path(self) -> Path:
        """The file of the base."""
        return self._base

    @property
    def base_size(self) -> int:
        """Bytes of the base."""
        return self._base.stat().st_size

    @property
    def known_changes(self) -> Changes | None:
        """Those that the copy held when it was made; None where others may have written to it."""
        return None if self._shared else self._earlier

    def note_fault(self, error: BaseException) -> None:
        """Remember if the private file has lost what was written to it, for want of room on the disk."""
        if self._file is not None and self.lost is None:
            self.lost = fault_of_disk(error, self._file, self._growth)

    def open_driver(self, limits: Limits) -> FileDriver:
        """Connect."""
        self._growth = limits.max_growth_bytes
        try:
            self._driver = FileDriver(
                self._file or self._base,
                self._base,
                limits,
                writable=self._file is not None,
                randomness=self.randomness,
                now=self._now,
                earlier=self.known_changes,
                note_fault=self.note_fault,
            )
        except (OSError, sqlite3.Error) as error:
            place = str(self._file or self._base)
            raise DatabaseError(f"cannot open the database: {error}", place=place) from error
        if self._shared:
            self._driver.share()
        return self._driver

    def fork(self, seed: int | None, now: datetime | None, earlier: Changes | None) -> FileState:
        """A copy of the committed state, with its own random numbers and clock if they are given."""
        folder = temporary_folder("database")
        file = folder / "rollout.db"
        try:
            if self._file is None:
                _clone(self._base, file)
                earlier = Changes()
            else:
                self._copy_to(file)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise StorageError(
                f"cannot copy the database: {error.strerror}", place=str(folder.parent), remedy=MAKE_ROOM
            ) from error
        inherited = self.randomness.copy() if self.randomness is not None else None
        return FileState(
            self._base,
            file,
            randomness=inherited if seed is None else Randomness(seed),
            now=now or self._now,
            earlier=self.known_changes if earlier is None else earlier,
        )

    def reader(self, earlier: Changes | None) -> FileState:
        """The same file, which this state removes when it is closed."""
        reader = FileState(self._base, self._file, randomness=self.randomness, now=self._now, earlier=earlier)
        reader._cleanup.detach()
        return reader

    def save(self, path: Path, keep: Keep) -> Path:
        """Write the committed state as a complete file, with the suffix ``.db`` if a delta was asked for."""
        target = path if keep == "full" else path.with_suffix(".db")
        with temporary_beside(target) as temporary:
            self._copy_to(temporary)
            with temporary.open("rb+") as written:
                os.fsync(written.fileno())
            temporary.replace(target)
        return target

    def image(self, _keep: Keep) -> None:
        """None: it is a file."""

    def close(self) -> None:
        """Remove the private file."""
        engines = [self._sync_engine, self._engine and self._engine.sync_engine]
        for engine in engines:
            if engine is not None:
                engine.dispose(close=False)  # its pool holds no connections that would have to be closed
        self._cleanup()

    def _share(self) -> None:
        self._shared = True
        if self._driver is not None:
            self._driver.share()

    def _copy_to(self, target: Path) -> None:
        # by SQLite and not by reading the file: closing a file drops all locks that this process holds on it
        source = open_unchanging(self._base) if self._file is None else open_file(self._file)
        try:
            with closing(source), closing(open_file(target)) as copy:
                copy_content(source, copy)
                copy.execute("PRAGMA journal_mode=DELETE").fetchall()
        except sqlite3.Error as error:
            raise DatabaseError(f"cannot copy the database: {error}", place=str(target)) from error


def _clone(source: Path, target: Path) -> None:
    """Copy a file that nobody writes to, sharing its blocks where the file system can."""
    with source.open("rb") as origin, target.open("xb") as copy:
        share_or_copy(origin, copy)


def _remove_folder(file: Path | None) -> None:
    if file is not None:
        shutil.rmtree(file.parent, ignore_errors=True)
