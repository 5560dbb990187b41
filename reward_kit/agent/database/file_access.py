"""Access to the files of mode "file": connections of ``sqlite3``, SQLAlchemy engines, faults of the disk."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import tempfile
from typing import TYPE_CHECKING

from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from pathlib import Path

LOCK_SECONDS = 0.5
"""Time for another connection to end its transaction; the event loop waits with the statement.

Calls take turns, so the holder of a lock is in the same call, and more patience would hardly help.
"""
LOCKED = "database is locked"
"""SQLite's message after that time."""

MAKE_ROOM = "Make room there or set TMPDIR, then continue with --resume: what is finished is kept."
_CLOSE_FILES = "Raise the limit (ulimit -n), or find the tool or agent that leaves files open."
_LOCK_CODES = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DISK_CODES = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN)
_LONGEST_CHAIN = 5


def open_file(path: Path) -> sqlite3.Connection:
    """A connection that leaves transactions to its user, for any thread."""
    return sqlite3.connect(path, timeout=LOCK_SECONDS, isolation_level=None, check_same_thread=False)


def open_unchanging(path: Path) -> sqlite3.Connection:
    """A connection for reading a file that is never written to, hence without locks."""
    address = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
    return sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)


def copy_content(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    """Make ``target`` equal to what ``source`` committed; ``sqlite3.OperationalError`` if one is in use."""
    locked = 0

    def check(status: int, _remaining: int, _total: int) -> None:
        nonlocal locked
        locked += status & 0xFF in _LOCK_CODES
        if locked > 2:  # sqlite3 itself would try for ever, every 0.25 s
            raise sqlite3.OperationalError(LOCKED)

    source.backup(target, progress=check)


def disk_fault(error: BaseException, file: Path, growth: int) -> StorageError | None:
    """The error to raise if the disk of ``file`` caused ``error``; None for all other errors.

    A file that may grow by ``growth`` bytes is full by itself only if the disk has so much room. Other
    complaints of SQLite may come of what a tool did to the file, as long as another file of that size can be
    written beside it.
    """
    code = _disk_code(error)
    if code is None:
        return None
    folder = file.parent.parent  # its own, a tool may have removed
    try:
        if code == sqlite3.SQLITE_FULL and shutil.disk_usage(folder).free < growth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - reported as the others are
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.seek(growth)  # the bytes before it take no room
            probe.write(b"x")
            probe.flush()
    except OSError as found:
        fault = StorageError(
            f"the working copy of a database cannot be written: {found.strerror or found}",
            place=str(folder),
            remedy=_CLOSE_FILES if found.errno in (errno.EMFILE, errno.ENFILE) else MAKE_ROOM,
        )
        fault.__cause__ = found
        return fault
    return None


def _disk_code(error: BaseException | None) -> int | None:
    """SQLite's complaint about a disk that ``error`` came of; SQLAlchemy has it under ``orig``."""
    for _ in range(_LONGEST_CHAIN):
        error = getattr(error, "orig", None) or error
        if isinstance(error, sqlite3.Error):
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            return code if code in _DISK_CODES else None
        error = error.__cause__ if error is not None else None
    return None
