"""The SQLite VFSs of this package: files of changed pages, and a clock that can be frozen.

``reward_kit_overlay``: databases are ``PageFile`` objects, the only files of a connection to a fork.
``reward_kit_clock``: plain files.  Both answer SQLite's questions for the time (``date('now')``,
``unixepoch()``, ``CURRENT_TIMESTAMP`` in a query or as a column default) with the frozen time of the thread
that runs the statement; SQLite does not say which connection asks.  Method names and semantics are those of
``sqlite3_io_methods`` and ``sqlite3_vfs``.
"""

from __future__ import annotations

import atexit
import itertools
import operator
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    from reward_kit.agent.database.overlay import Overlay

_OVERLAY = "reward_kit_overlay"
_CLOCK = "reward_kit_clock"
_UNIX_EPOCH = 210_866_760_000_000
"""1970-01-01T00:00Z in milliseconds since Julian day 0."""


class _Frozen(threading.local):
    milliseconds: int | None = None


_frozen = _Frozen()


def freeze_clock(unix_seconds: float | None) -> None:
    """Stop SQLite's clock in this thread at ``unix_seconds``; None starts it again."""
    _frozen.milliseconds = None if unix_seconds is None else round(unix_seconds * 1000) + _UNIX_EPOCH


class PageFile:
    """The main database of a connection, with the content of ``overlay``, which may be replaced by another.

    ``is_locked`` is true while SQLite holds a lock.
    """

    __slots__ = ("__weakref__", "is_locked", "overlay", "page_size")
    xFileControl = operator.is_  # never true of an operation and an address; SQLite asks twice a commit
    _CHARACTERISTICS = apsw.SQLITE_IOCAP_UNDELETABLE_WHEN_OPEN | apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay
        self.page_size = overlay.base.page_size
        self.is_locked = False

    def xLock(self, level: int) -> None:
        self.is_locked = level != apsw.SQLITE_LOCK_NONE

    xUnlock = xLock

    def xSync(self, _flags: int) -> None:
        pass

    def xCheckReservedLock(self) -> bool:
        return False

    def xDeviceCharacteristics(self) -> int:
        return self._CHARACTERISTICS

    def xSectorSize(self) -> int:
        return self.page_size

    def xFileSize(self) -> int:
        return self.overlay.size

    def xRead(self, amount: int, offset: int) -> bytes:
        overlay = self.overlay
        start = offset % self.page_size
        page_offset = offset - start
        page = overlay.pages.get(page_offset)
        if page is None:
            if offset + amount <= overlay.limit:
                return overlay.base.read(offset, amount)
            page = bytes(max(0, min(self.page_size, overlay.size - page_offset)))
        return page[start : start + amount]  # a short answer makes SQLite fill up with zeros

    def xWrite(self, data: bytes, offset: int) -> None:
        if len(data) != self.page_size or offset % self.page_size:
            raise apsw.ReadOnlyError("the page size of a base cannot be changed")
        overlay = self.overlay
        overlay.size = max(overlay.size, offset + self.page_size)
        overlay.pages[offset] = bytes(data)

    def xTruncate(self, size: int) -> None:
        self.overlay.truncate(size)

    def xClose(self) -> None:
        pass


class _VFS(apsw.VFS):
    def xCurrentTimeInt64(self) -> int:
        """Milliseconds since Julian day 0."""
        if _frozen.milliseconds is not None:
            return _frozen.milliseconds
        return int(time.time() * 1000) + _UNIX_EPOCH

    def xCurrentTime(self) -> float:
        return self.xCurrentTimeInt64() / 86_400_000


class _OverlayVFS(_VFS):
    def xFullPathname(self, name: str) -> str:
        return name

    def xOpen(  # type: ignore[override]  # apsw takes any object that has the methods of its VFSFile
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> PageFile:
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        file = _files.get(path or "")
        if file is None:  # journals and temporary files are SQLite's own, in memory
            raise apsw.CantOpenError(f"no fork of the name {path}")
        flags[1] = flags[0]
        return file

    def xAccess(self, _path: str, _flags: int) -> bool:
        return False

    def xDelete(self, path: str, _sync_folder: bool) -> None:
        pass


class _ClockVFS(_VFS):
    def xFullPathname(self, name: str) -> str:
        # SQLite's own method reports links in the path, which apsw takes for an error
        return os.path.realpath(name)


_numbers = itertools.count(1)
_files: weakref.WeakValueDictionary[str, PageFile] = weakref.WeakValueDictionary()
_registered = _OverlayVFS(_OVERLAY, ""), _ClockVFS(_CLOCK, "")


def connect_pages(file: PageFile) -> apsw.Connection:
    """A bare connection to ``file``."""
    name = f"fork{next(_numbers)}"
    _files[name] = file
    return apsw.Connection(name, vfs=_OVERLAY, flags=apsw.SQLITE_OPEN_READWRITE)


def create_file(path: str | os.PathLike[str]) -> apsw.Connection:
    """A bare connection to a plain file, made if it is missing, whose clock can be frozen."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    return apsw.Connection(os.fspath(path), vfs=_CLOCK, flags=flags)


def install_function(connection: apsw.Connection, name: str, function: Any, arguments: int = 0) -> None:
    """Let SQL's function ``name`` answer from ``function``."""
    # innocuous: also if the schema calls it, in DEFAULT, CHECK, triggers and views
    connection.create_scalar_function(name, function, arguments, flags=apsw.SQLITE_INNOCUOUS)


@atexit.register
def _close_all() -> None:
    """Close what is still open as Python ends: SQLite would ask files whose module is gone already."""
    for connection in apsw.connections():
        if connection.open_vfs == _OVERLAY:
            connection.close(True)
