"""The lock of an evaluation's one writer: SQLite's exclusive lock on an empty database beside its file.

The system releases it when the process ends, however that ends, and no fork of the process inherits it.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from reward_kit.agent.base.files import as_storage_error
from reward_kit.agent.store.evaluation_file import reading, sqlite_faults
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PATIENCE = 0.5
"""Seconds that the lock may be held by somebody who only looks whether it is free."""


@contextmanager
def writer_lock(path: Path) -> Iterator[None]:
    """Hold the lock of the evaluation at ``path``; raises ``StorageError`` if somebody else has it."""
    place = _place(path)
    lock = None
    while lock is None:
        lock = _taken(place, path)
    try:
        yield
    finally:
        place.unlink(missing_ok=True)
        lock.close()


def _taken(place: Path, path: Path) -> sqlite3.Connection | None:
    """The locked file; None if its former holder has removed it since it was opened here."""
    with as_storage_error(place):
        place.touch()
        before = place.lstat()
    with sqlite_faults(place):
        lock = sqlite3.connect(place, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            lock.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError as error:
            lock.close()
            if "locked" not in str(error):
                raise
            holder = _last_writer(path)
            raise StorageError(
                f"another process{f' ({holder})' if holder else ''} is running this evaluation",
                place=path.stem,
                remedy="Wait for it to end, or choose another --eval-id.",
            ) from error
    with suppress(FileNotFoundError):
        if os.path.samestat(before, place.lstat()):
            return lock
    lock.close()
    return None


def writer_of(path: Path) -> str | None:
    """The process that writes the evaluation at ``path`` now; None if nobody does."""
    place = _place(path)
    if not place.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{place.absolute().as_uri()}?mode=rw", uri=True, timeout=0)) as probe:
            probe.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            return f"process {_last_writer(path)}"
    return None


def _place(path: Path) -> Path:
    return path.with_suffix(".lock")


def _last_writer(path: Path) -> str | None:
    """Number and host of the process that began the last run."""
    try:
        with reading(path) as connection:
            found = connection.execute("SELECT writer FROM evaluation ORDER BY run DESC LIMIT 1").fetchone()
    except StorageError:
        return None
    return None if found is None else str(found[0])
