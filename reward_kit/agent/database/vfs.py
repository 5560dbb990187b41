"""The SQLite VFSs of this package: files of changed pages, and a clock that can be frozen.

``reward_kit_overlay``: databases are ``PageFile`` objects, the only files of a connection to a fork; beneath
lies a ``BaseImage``, a finished SQLite file, read once and shared by every fork in the process.
``reward_kit_clock``: plain files.  Both answer SQLite's questions for the time (``date('now')``,
``unixepoch()``, ``CURRENT_TIMESTAMP`` in a query or as a column default) with the frozen time of the thread
that runs the statement; SQLite does not say which connection asks.  Method names and semantics are those of
``sqlite3_io_methods`` and ``sqlite3_vfs``.
"""

from __future__ import annotations

import atexit
import hashlib
import itertools
import operator
import os
import threading
import time
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import apsw

from reward_kit.errors import DatabaseError

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
        overlay.pages[offset] = bytes(data) if offset else overlay.base.shared_first_page(bytes(data))

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
    """Close open connections as Python ends: SQLite would call files whose module is unloaded already."""
    for connection in apsw.connections():
        if connection.open_vfs == _OVERLAY:
            connection.close(True)


# -- the base

IN_MEMORY_LIMIT = 64 << 20
"""Bases up to this size (bytes) are held as one bytes object; larger ones are read page by page."""

FOREIGN_KEYS_ON = 0x52774B46
"""``PRAGMA application_id`` of a base whose seed switched foreign keys on ("RwkF").

SQLite forgets ``PRAGMA foreign_keys`` when a connection closes; this header field survives in the base, its
forks and their exports without a table that queries would see.
"""

_MAGIC = b"SQLite format 3\0"
_HEADER_SIZE = 100
_HASH_CHUNK = 4 << 20
_OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

_Identity = tuple[int, int, int, int]
"""Device, inode, size and time of the last change (ns) of a file."""


class BaseImage:
    """An immutable base.  Build one with :meth:`open`, which shares it between all users of the file.

    ``content`` are all bytes of the file, if it is small enough to be held. The file is never mapped into
    memory: if it is truncated, reads raise ``DatabaseError`` instead of killing the process.
    """

    _lock: ClassVar = threading.Lock()
    _open: ClassVar[weakref.WeakValueDictionary[_Identity, BaseImage]] = weakref.WeakValueDictionary()
    # hashing a large base takes seconds: the result outlives the image, for a process that opens many deltas
    _fingerprints: ClassVar[dict[_Identity, bytes]] = {}

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._identity = _identify(os.fstat(descriptor))
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self.content: bytes | None = None
        self._first_pages: dict[int, bytes] = {}
        if self.size <= IN_MEMORY_LIMIT or not hasattr(os, "pread"):
            with open(descriptor, "rb", closefd=False) as file:
                self.content = file.read()
        self.header = self.read(0, _HEADER_SIZE) if self.size >= _HEADER_SIZE else b""
        self.page_size = _check_header(self.header, self.size, path)
        for companion in (Path(f"{path}-wal"), Path(f"{path}-journal")):
            if companion.exists() and companion.stat().st_size:
                fault = f"an unfinished transaction lies beside it ({companion.name})"
                raise DatabaseError(fault, place=str(path), remedy="Open and close it once with SQLite.")

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> BaseImage:
        """The image of ``path``, shared by all who have it open.

        Raises ``DatabaseError`` for a file that is missing, no SQLite database, truncated, or not finished
        (WAL mode, or a journal beside it).
        """
        try:
            with cls._lock, ExitStack() as opened:
                descriptor = os.open(path, _OPEN_FLAGS)
                opened.callback(os.close, descriptor)
                image = cls._open.get(_identify(os.fstat(descriptor)))
                if image is None:
                    image = cls(Path(os.path.realpath(path)), descriptor)
                    cls._open[image._identity] = image
                    if image.content is None:
                        weakref.finalize(image, opened.pop_all().close)
                return image
        except (OSError, ValueError) as error:
            fault = getattr(error, "strerror", error)
            raise DatabaseError(f"cannot open the database: {fault}", place=str(path)) from error

    @property
    def fingerprint(self) -> bytes:
        """16 bytes that stand for the content of the whole file (computed once)."""
        return self._fingerprints.get(self._identity) or self.measure()

    def measure(self) -> bytes:
        """``fingerprint``, computed anew: damage need not show in a file's size and time."""
        digest = hashlib.blake2b(digest_size=16)
        for offset in range(0, self.size, _HASH_CHUNK):
            digest.update(self.read(offset, min(_HASH_CHUNK, self.size - offset)))
        found = self._fingerprints[self._identity] = digest.digest()
        return found

    def read(self, offset: int, amount: int) -> bytes:
        """``amount`` bytes at ``offset``, which must lie inside the file."""
        if self.content is not None:
            return self.content[offset : offset + amount]
        data = os.pread(self._descriptor, amount, offset)
        if len(data) != amount:
            raise DatabaseError("the base was truncated while in use", place=str(self.path))
        return data

    def shared_first_page(self, page: bytes) -> bytes:
        """The equal page of another fork, if there is one: most differ from the base's only in a counter."""
        shared = self._first_pages.setdefault(page[27], page)  # the last byte of the counter
        if shared != page:
            self._first_pages[page[27]] = shared = page
        return shared

    def check_intact(self) -> None:
        """Raise ``DatabaseError`` if the file that forks read has changed since it was opened."""
        if self.content is None and _identify(os.fstat(self._descriptor)) != self._identity:
            raise self._changed()

    def check_on_disk(self) -> None:
        """Raise ``DatabaseError`` if a process that opens ``path`` now would not get the same bytes."""
        self.check_intact()
        try:
            # the same bytes under another inode or time are as good as the old ones
            same = _identify(self.path.stat()) == self._identity or (
                BaseImage.open(self.path).fingerprint == self.fingerprint
            )
        except (OSError, DatabaseError) as error:
            raise DatabaseError(f"the base is no longer there: {error}", place=str(self.path)) from error
        if not same:
            raise self._changed()

    def _changed(self) -> DatabaseError:
        remedy = "Bases are read-only: seed a new one under another name."
        return DatabaseError("the base was changed on disk while in use", place=str(self.path), remedy=remedy)


def foreign_keys_on(header: bytes) -> bool:
    """True if a base that starts with ``header`` was seeded with foreign keys switched on."""
    return int.from_bytes(header[68:72], "big") == FOREIGN_KEYS_ON


def _identify(status: os.stat_result) -> _Identity:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _check_header(header: bytes, size: int, path: Path) -> int:
    """The page size in bytes; ``DatabaseError`` if this is no complete SQLite database in rollback mode."""
    if len(header) < _HEADER_SIZE or header[:16] != _MAGIC:
        raise DatabaseError("not a SQLite database", place=str(path))
    if 2 in (header[18], header[19]):
        remedy = "Run `PRAGMA journal_mode=DELETE` on it first."
        raise DatabaseError("the database is in WAL mode", place=str(path), remedy=remedy)
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 65536 if page_size == 1 else page_size
    if page_size < 512 or page_size & (page_size - 1):
        raise DatabaseError(f"damaged header: page size {page_size}", place=str(path))
    pages = int.from_bytes(header[28:32], "big")
    count_is_valid = header[24:28] == header[92:96]  # writers older than SQLite 3.7 leave it alone
    if size % page_size or (count_is_valid and pages * page_size != size):
        raise DatabaseError(
            f"the file has {size} bytes, its header says {pages} pages of {page_size}: truncated or damaged",
            place=str(path),
        )
    return page_size
