"""The two SQLite VFSs of this package, registered when first needed.

``reward_kit_overlay``: main databases are the objects of ``page_file.py``, journals and temporary files live
in memory.
``reward_kit_clock``: plain files, with the clock of ``determinism.py``.
"""

from __future__ import annotations

import atexit
import itertools
import os
import threading
import weakref
from typing import TYPE_CHECKING

import apsw

from reward_kit.agent.database.determinism import sqlite_days, sqlite_milliseconds
from reward_kit.agent.database.page_file import MemoryFile, PageFile

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.database.determinism import Randomness

_OVERLAY = "reward_kit_overlay"
_CLOCK = "reward_kit_clock"


class _VFS(apsw.VFS):
    def xCurrentTime(self) -> float:
        return sqlite_days()

    def xCurrentTimeInt64(self) -> int:
        return sqlite_milliseconds()


class _OverlayVFS(_VFS):
    def __init__(self) -> None:
        super().__init__(_OVERLAY, "")
        self._numbers = itertools.count(1)
        self._files: weakref.WeakValueDictionary[str, PageFile] = weakref.WeakValueDictionary()

    def enter(self, file: PageFile) -> str:
        """A name under which SQLite can open ``file``."""
        name = f"fork{next(self._numbers)}"
        self._files[name] = file
        return name

    def xFullPathname(self, name: str) -> str:
        return name

    def xOpen(  # type: ignore[override]  # apsw takes any object that has the methods of its VFSFile
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> PageFile | MemoryFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        flags[1] = flags[0]
        if path is None:
            return MemoryFile()
        if flags[0] & apsw.SQLITE_OPEN_MAIN_DB:
            file = self._files.get(path)
            if file is None or file.opened:
                raise apsw.CantOpenError(f"no fork of the name {path}")
            file.opened = True
            return file
        # journals are kept with their own main database: two forks cannot meet, and they go when the fork
        # goes
        return self._journals(path).setdefault(path, MemoryFile())

    def xAccess(self, path: str, _flags: int) -> bool:
        return path in self._journals(path)

    def xDelete(self, path: str, _sync_folder: bool) -> None:
        self._journals(path).pop(path, None)

    def _journals(self, path: str) -> dict[str, MemoryFile]:
        file = self._files.get(path.partition("-")[0])
        return {} if file is None else file.journals


class _ClockVFS(_VFS):
    def __init__(self) -> None:
        super().__init__(_CLOCK, "")

    def xFullPathname(self, name: str) -> str:
        # apsw takes it for an error when SQLite's own method tells that there are links in the path
        return os.path.realpath(name)


_registering = threading.Lock()
_overlay_vfs: _OverlayVFS | None = None
_clock_vfs: _ClockVFS | None = None
_open: weakref.WeakSet[apsw.Connection] = weakref.WeakSet()


def connect_overlay(file: PageFile) -> apsw.Connection:
    """A bare connection to ``file``, which must not be open."""
    global _overlay_vfs
    with _registering:
        if _overlay_vfs is None:
            _overlay_vfs = _OverlayVFS()
            atexit.register(_close_all)
    connection = apsw.Connection(_overlay_vfs.enter(file), vfs=_OVERLAY, flags=apsw.SQLITE_OPEN_READWRITE)
    _open.add(connection)
    return connection


def connect_file(path: str | os.PathLike[str], *, create: bool = False) -> apsw.Connection:
    """A bare connection to a plain file whose clock is ``set_clock``'s."""
    global _clock_vfs
    with _registering:
        _clock_vfs = _clock_vfs or _ClockVFS()
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    return apsw.Connection(os.fspath(path), vfs=_CLOCK, flags=flags)


def install_random(connection: apsw.Connection, randomness: Randomness) -> None:
    """Let ``random()`` and ``randomblob()`` answer from ``randomness``."""
    functions: list[tuple[str, Callable[..., int | bytes], int]]
    functions = [("random", randomness.integer, 0), ("randomblob", randomness.blob, 1)]
    for name, function, arguments in functions:
        # innocuous: also where the schema calls them, in DEFAULT, CHECK, triggers and views
        connection.create_scalar_function(name, function, arguments, flags=apsw.SQLITE_INNOCUOUS)


def _close_all() -> None:
    """Close what is still open as Python ends: SQLite would ask files whose module is gone already."""
    for connection in list(_open):
        connection.close(True)
