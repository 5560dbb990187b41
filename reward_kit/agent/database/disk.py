"""Telling a full or broken disk from the faults of a statement."""

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

_IO_ERROR, _FULL, _CANNOT_OPEN = 10, 13, 14
_MESSAGES = {
    "disk I/O error": _IO_ERROR,
    "database or disk is full": _FULL,
    "unable to open database file": _CANNOT_OPEN,
}
MAKE_ROOM = "Make room there or set TMPDIR, then continue with --resume: what is finished is kept."
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
_CLOSE_FILES = "Raise the limit (ulimit -n), or find the tool or agent that leaves files open."
_LONGEST_CHAIN = 5


def is_of_disk(code: int) -> bool:
    """True for the result codes of SQLite that a disk may be the cause of."""
    return code & 0xFF in _MESSAGES.values()


def fault_of_disk(error: BaseException, file: Path, growth: int) -> StorageError | None:
    """The error to raise if ``error`` came of the disk of ``file``; None for all other errors.

    A file that may grow by ``growth`` bytes is full by itself only where the disk has so much room. Other
    complaints of SQLite may come of what a tool did to the file, as long as another of so many bytes can be
    written beside it.
    """
    kind = _kind_in(error)
    if kind is None:
        return None
    folder = file.parent.parent  # its own, a tool may have removed
    try:
        if kind == _FULL and shutil.disk_usage(folder).free < growth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - reported as the others are
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.seek(growth)  # the bytes before it take no room
            probe.write(b"x")
            probe.flush()
    except OSError as found:
        fault = StorageError(
            f"the working copy of a database cannot be written: {found.strerror or found}",
            place=str(folder),
            remedy=_CLOSE_FILES if found.errno in _OUT_OF_FILES else MAKE_ROOM,
        )
        fault.__cause__ = found
        return fault
    return None


def _kind_in(error: BaseException | None) -> int | None:
    """SQLite's complaint about a disk that ``error`` came of; SQLAlchemy has it under ``orig``."""
    for _ in range(_LONGEST_CHAIN):
        inner = getattr(error, "orig", None)
        if isinstance(inner, sqlite3.Error):
            error = inner
        if error is None:
            return None
        if isinstance(error, sqlite3.Error):
            # before Python 3.11 sqlite3 gives no code
            code = getattr(error, "sqlite_errorcode", 0)
            kind = code & 0xFF if code else _MESSAGES.get(str(error))
            return kind if kind in _MESSAGES.values() else None
        error = error.__cause__
    return None
