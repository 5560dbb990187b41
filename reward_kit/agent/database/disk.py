"""Telling a full or broken disk from what a statement did wrong."""

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
_SAID = {
    "disk I/O error": _IO_ERROR,
    "database or disk is full": _FULL,
    "unable to open database file": _CANNOT_OPEN,
}
MAKE_ROOM = "Make room there or set TMPDIR, then continue with --resume: what is finished is kept."
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE)
_CLOSE_FILES = "Raise the limit (ulimit -n), or find the tool or agent that leaves files open."
_LONGEST_CHAIN = 5


def may_be_of_disk(message: str, code: int | None) -> bool:
    """Whether SQLite says this of a disk, too; ``code`` is None or 0 where it is not known."""
    return _kind(message, code) is not None


def fault_of_disk(error: BaseException, file: Path, growth: int) -> StorageError | None:
    """Why ``file`` cannot be written, where ``error`` came of its disk; None for all other errors.

    A file that may grow by ``growth`` bytes is full by itself only where the disk has so much room. What else
    SQLite complains of, a tool may have done to the file, as long as another of so many bytes can be written
    beside it.
    """
    kind = _kind_in(error)
    if kind is None:
        return None
    folder = file.parent.parent  # its own, a tool may have removed
    try:
        if kind == _FULL and shutil.disk_usage(folder).free < growth:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # noqa: TRY301 - told as the others are
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.seek(growth)  # what lies before it takes no room
            probe.write(b"x")
            probe.flush()
    except OSError as found:
        told = StorageError(
            f"the working copy of a database cannot be written: {found.strerror or found}",
            place=str(folder),
            remedy=_CLOSE_FILES if found.errno in _OUT_OF_FILES else MAKE_ROOM,
        )
        told.__cause__ = found
        return told
    return None


def _kind_in(error: BaseException | None) -> int | None:
    """What SQLite said, if it is what ``error`` came of; SQLAlchemy has it under ``orig``."""
    for _ in range(_LONGEST_CHAIN):
        if error is None:
            return None
        inner = getattr(error, "orig", None)
        if isinstance(inner, sqlite3.Error):
            error = inner
        if isinstance(error, sqlite3.Error):
            return _kind(str(error), getattr(error, "sqlite_errorcode", None))
        error = error.__cause__
    return None


def _kind(message: str, code: int | None) -> int | None:
    # before Python 3.11 sqlite3 tells no code
    kind = code & 0xFF if code else _SAID.get(message)
    return kind if kind in _SAID.values() else None
