"""Copy-on-write forks of a base: the base is read, changed pages are kept in a dict.

A fork costs what opening a SQLite connection costs, whatever the size of the base; it takes no descriptor
and no thread, and writes nothing to disk.  SQLite reaches the pages through a VFS, so every SQL feature works
as on a plain file.

A state is kept as a complete SQLite file (``export``) or as a delta, little endian: ``_HEADER``, ``_STATE``,
the page numbers (from 0, 4 bytes each), then the pages: zlib streams, each of some pages with those of the
base as its dictionary.
"""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import apsw

from reward_kit.agent.base.files import publish, share_or_copy
from reward_kit.agent.database.vfs import BaseImage, PageFile, connect_pages, foreign_keys_on
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterator

StrPath = str | os.PathLike[str]

_LARGE_BASE = 16 << 20
_SMALL_CACHE, _LARGE_CACHE = 256, 2000
"""Page cache of a connection in KiB: to a small base, whose pages are in memory anyway, or a large one."""
_IN_MEMORY = "PRAGMA journal_mode=MEMORY; PRAGMA temp_store=MEMORY; PRAGMA synchronous=OFF"
_EXCLUSIVE = "PRAGMA locking_mode=EXCLUSIVE"
"""Spares locks and a look at the change counter per statement."""

_MAGIC = b"RwkDelta"
_VERSION = 4
_STREAM_BYTES = 28 << 10
"""Pages of one zlib stream: they and those of the base have to fit into a window of 32 KiB."""
_FEW_PAGES, _SMALL_TABLES = 2, 4
"""Pages at most for which zlib gets tables of this ``memLevel``: clearing its usual ones takes longer."""
_HEADER = struct.Struct("<8sHI")
"""Magic, version, CRC-32 of the rest."""
_STATE = struct.Struct("<16sQQI")
"""Fingerprint of the base, ``size`` and ``limit`` of the overlay, number of changed pages."""


class Overlay:
    """The state of one fork: ``base`` overlaid with ``pages`` (byte offset of a page -> its content).

    ``size`` is the length of the file in bytes.  Bytes of the base from ``limit`` on are no longer visible:
    a file that shrinks and grows again reads zeros there, not the base's old content.
    """

    __slots__ = ("base", "limit", "pages", "size")

    def __init__(self, base: BaseImage) -> None:
        self.base = base
        self.pages: dict[int, bytes] = {}
        self.size = self.limit = base.size

    @classmethod
    def between(cls, base: BaseImage, after: BaseImage) -> Overlay:
        """The state of the complete file ``after`` as one of ``base``.

        ``DatabaseError`` if they have different page sizes.
        """
        if after.page_size != base.page_size:
            raise DatabaseError("the page size was changed, so that there is no delta", place=str(after.path))
        overlay = cls(base)
        for offset in range(0, after.size, after.page_size):
            page = after.read(offset, after.page_size)
            if offset >= base.size or page != base.read(offset, base.page_size):
                overlay.write(offset, page)
        overlay.truncate(after.size)
        return overlay

    def connect(self, *pragmas: str, file: PageFile | None = None) -> apsw.Connection:
        """Open the one connection that this state may have at a time, and run ``pragmas`` on it.

        Through ``file``, whose content it is, the connection can be moved to other states.
        """
        connection = connect_pages(file or PageFile(self))
        cache = _LARGE_CACHE if self.base.size > _LARGE_BASE else _SMALL_CACHE
        connection.execute(
            "; ".join([_EXCLUSIVE, _IN_MEMORY, f"PRAGMA cache_size=-{cache}", *pragmas])
        ).fetchall()
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, int(foreign_keys_on(self._header)))
        return connection

    def write(self, offset: int, page: bytes) -> None:
        """Replace a page, or add one at the end."""
        self.size = max(self.size, offset + len(page))
        self.pages[offset] = page

    def truncate(self, size: int) -> None:
        """Set the length in bytes."""
        if size < self.size:
            self.limit = min(self.limit, size)
            self.pages = {offset: page for offset, page in self.pages.items() if offset < size}
        self.size = size

    def fork(self) -> Overlay:
        """A private copy; costs time in proportion to the changed pages.

        No transaction may be open.  ``DatabaseError`` if the base was changed on disk.
        """
        self.settle()
        copy = Overlay(self.base)
        copy.pages, copy.size, copy.limit = dict(self.pages), self.size, self.limit
        return copy

    def settle(self) -> None:
        """Check that the base is intact; drop the pages that equal it."""
        self.base.check_intact()
        self._prune()

    def _prune(self) -> None:
        page_size, limit, read = self.base.page_size, self.limit, self.base.read
        for offset, page in list(self.pages.items()):
            if offset + page_size <= limit and page == read(offset, page_size):
                del self.pages[offset]

    @property
    def pristine(self) -> bool:
        """True if the state is the base itself."""
        self._prune()
        return not self.pages and self.size == self.base.size

    @property
    def schema_changed(self) -> bool:
        """True if the schema is no longer that of the base."""
        return self._header[40:44] != self.base.header[40:44]  # a number that grows with every change of it

    @property
    def is_reachable(self) -> bool:
        """True if a connection to the base can be moved to this state and back, as ``give_up_lock`` says."""
        counted = self._header[24:28] != self.base.header[24:28]
        return not self.schema_changed and (counted or self.pristine)

    def delta(self) -> bytes:
        """The bytes that lead from the base to the committed state.

        No transaction may be open.  ``DatabaseError`` if the base was changed on disk.
        """
        self.settle()
        base = self.base
        base.check_on_disk()
        offsets = sorted(self.pages)
        rest = _STATE.pack(base.fingerprint, self.size, self.limit, len(offsets))
        rest += struct.pack(f"<{len(offsets)}I", *(offset // base.page_size for offset in offsets))
        for together in _streams(offsets, base.page_size):
            memory = _SMALL_TABLES if len(together) <= _FEW_PAGES else zlib.DEF_MEM_LEVEL
            deflate = zlib.compressobj(1, memLevel=memory, zdict=_base_pages(base, together))
            rest += deflate.compress(b"".join([self.pages[offset] for offset in together])) + deflate.flush()
        return _HEADER.pack(_MAGIC, _VERSION, zlib.crc32(rest)) + rest

    @classmethod
    def from_delta(cls, content: bytes, base: BaseImage, place: StrPath = "delta") -> Overlay:
        """The state that ``delta`` packed; ``place`` names it in errors.

        ``DatabaseError`` if the content is no delta, damaged, or belongs to another base.
        """
        if content[: len(_MAGIC)] != _MAGIC:
            raise DatabaseError("not a delta", place=str(place))
        if len(content) < _HEADER.size + _STATE.size:
            raise DatabaseError("the delta is truncated", place=str(place))
        _, version, checksum = _HEADER.unpack_from(content)
        if version != _VERSION:
            raise DatabaseError(
                f"the delta has format version {version}, this release reads version {_VERSION}",
                place=str(place),
            )
        rest = content[_HEADER.size :]
        if zlib.crc32(rest) != checksum:
            raise DatabaseError("the delta is truncated or damaged", place=str(place))
        overlay = cls(base)
        fingerprint, overlay.size, overlay.limit, count = _STATE.unpack_from(rest)
        if base.fingerprint != fingerprint:
            raise DatabaseError(f"the delta belongs to another base than {base.path}", place=str(place))
        try:
            overlay._unpack(rest[_STATE.size :], count)
        except (ValueError, struct.error, zlib.error) as error:
            fault = "the delta is damaged: its parts do not fit together"
            raise DatabaseError(fault, place=str(place)) from error
        return overlay

    def _unpack(self, packed: bytes, count: int) -> None:
        """Read ``count`` page numbers, then the pages."""
        page_size = self.base.page_size
        offsets = [number * page_size for number in struct.unpack_from(f"<{count}I", packed)]
        packed = packed[4 * count :]
        for together in _streams(offsets, page_size):
            inflate = zlib.decompressobj(zdict=_base_pages(self.base, together))
            content = inflate.decompress(packed, len(together) * page_size + 1)
            if len(content) != len(together) * page_size:
                raise ValueError("a stream of another length than its pages")
            for number, offset in enumerate(together):
                self.pages[offset] = content[number * page_size : (number + 1) * page_size]
            packed = inflate.unused_data

    def export(self, path: StrPath) -> Path:
        """Write the committed state as a complete SQLite file to ``path``; returns it.

        Shares the base's blocks if the file system can, else copies them.  ``DatabaseError`` as for
        ``delta``, ``StorageError`` if the file cannot be written.
        """
        self.settle()
        base = self.base
        with publish(path) as target:
            if base.content is None:
                with base.path.open("rb") as source:
                    share_or_copy(source, target)
            else:
                target.write(base.content)
            target.truncate(min(self.limit, base.size))
            for offset in sorted(self.pages):
                target.seek(offset)
                target.write(self.pages[offset])
            target.truncate(self.size)
            base.check_intact()
        return Path(path)

    @property
    def _header(self) -> bytes:
        return self.pages.get(0, self.base.header)


def give_up_lock(connection: apsw.Connection) -> None:
    """Let the file of ``connection`` be changed, if no query is unfinished.

    When SQLite takes the lock again, it empties its cache if it finds another change counter, as after a
    write by another process.  The counters of two forks may be the same, that of the base is another: so a
    connection has to look at the base on the way from one fork to another.
    """
    connection.execute("PRAGMA locking_mode=NORMAL", can_cache=False)
    connection.execute("SELECT 1 FROM sqlite_schema").close()
    connection.execute(_EXCLUSIVE, can_cache=False)


def _streams(offsets: list[int], page_size: int) -> Iterator[list[int]]:
    """``offsets`` of pages in groups, one for each zlib stream."""
    amount = max(1, _STREAM_BYTES // page_size)
    for start in range(0, len(offsets), amount):
        yield offsets[start : start + amount]


def _base_pages(base: BaseImage, offsets: list[int]) -> bytes:
    """The base's pages at ``offsets``, zeros if the base has none."""
    size = base.page_size
    return b"".join(base.read(offset, size) if offset < base.size else bytes(size) for offset in offsets)
