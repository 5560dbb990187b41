"""The file that SQLite sees as the main database of a fork, and the in-memory files beside it.

Method names and semantics are those of ``sqlite3_io_methods``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import apsw

if TYPE_CHECKING:
    from reward_kit.agent.database.base_image import BaseImage

_PRUNE_GROWTH = 64
"""After a rollback that leaves this many more pages, those that equal the base are looked for."""


class _QuietFile:
    """A file that only one connection uses and no disk holds: locks and syncs do nothing."""

    __slots__ = ()

    def xSync(self, flags: int) -> None:
        pass

    def xLock(self, level: int) -> None:
        pass

    def xUnlock(self, level: int) -> None:
        pass

    def xCheckReservedLock(self) -> bool:
        return False

    def xSectorSize(self) -> int:
        return 4096

    def xClose(self) -> None:
        pass


class MemoryFile(_QuietFile):
    """A journal or temporary file that never reaches the disk."""

    __slots__ = ("content",)

    def __init__(self) -> None:
        self.content = bytearray()

    def xRead(self, amount: int, offset: int) -> bytes:
        return bytes(self.content[offset : offset + amount])

    def xWrite(self, data: bytes, offset: int) -> None:
        if offset > len(self.content):
            self.content.extend(bytes(offset - len(self.content)))
        self.content[offset : offset + len(data)] = data

    def xTruncate(self, size: int) -> None:
        del self.content[size:]

    def xFileSize(self) -> int:
        return len(self.content)

    def xDeviceCharacteristics(self) -> int:
        return 0

    def xFileControl(self, _op: int, _pointer: int) -> bool:
        return False


class PageFile(_QuietFile):
    """``base`` overlaid with ``pages`` (byte offset of a page -> its content).

    ``size`` is the length of the file in bytes.  Bytes of the base from ``limit`` on are no longer visible:
    a file that shrinks and grows again reads zeros there, not the base's old content.  A "page" is one of
    the base's; a fork may change its own page size by VACUUM, which is why reads and writes of other shapes
    are taken too.  ``journals`` are the files beside it.
    """

    __slots__ = (
        "__weakref__", "base", "journals", "limit", "opened", "page_size", "pages", "settled", "size",
    )  # fmt: skip
    _CHARACTERISTICS = apsw.SQLITE_IOCAP_UNDELETABLE_WHEN_OPEN | apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE

    def __init__(self, base: BaseImage) -> None:
        self.opened = False
        self.journals: dict[str, MemoryFile] = {}
        self.base = base
        self.page_size = base.page_size
        self.pages: dict[int, bytes] = {}
        self.size = base.size
        self.limit = base.size
        self.settled = 0

    def xDeviceCharacteristics(self) -> int:
        return self._CHARACTERISTICS

    def xFileControl(self, op: int, pointer: int) -> bool:
        if op != apsw.SQLITE_FCNTL_PRAGMA:
            return False
        pragma = apsw.VFSFcntlPragma(pointer)
        # a write-ahead log would hold committed pages outside this file, where forks and deltas would miss
        # them
        if pragma.name.lower() == "journal_mode" and (pragma.value or "").strip("'\"").lower() == "wal":
            pragma.result = "memory"  # SQLite answers the old mode when it cannot change to the new one
            return True
        return False

    def xClose(self) -> None:
        self.opened = False
        self.journals.clear()

    def copy(self) -> PageFile:
        """The same content in a file of its own."""
        copy = PageFile(self.base)
        copy.pages = dict(self.pages)
        copy.size = self.size
        copy.limit = self.limit
        return copy

    def prune(self) -> None:
        """Drop the pages that equal the base."""
        if not self.pages:
            return
        page_size, limit, read = self.page_size, self.limit, self.base.read
        same = [
            offset
            for offset, page in self.pages.items()
            if offset + page_size <= limit and page == read(offset, page_size)
        ]
        for offset in same:
            del self.pages[offset]
        self.settled = len(self.pages)

    def prune_if_grown(self) -> None:
        """``prune`` when a rollback has left many pages; SQLite calls this once it has restored them."""
        if len(self.pages) > self.settled + _PRUNE_GROWTH:
            self.prune()

    def page(self, offset: int) -> bytes:
        """The whole page at ``offset``, zeros where nothing was ever written."""
        page = self.pages.get(offset)
        if page is not None:
            return page
        visible = min(self.page_size, max(0, self.limit - offset))
        if visible == self.page_size:
            return self.base.read(offset, visible)
        return (self.base.read(offset, visible) if visible else b"").ljust(self.page_size, b"\0")

    def xRead(self, amount: int, offset: int) -> bytes:
        if amount == self.page_size and not offset % amount:
            page = self.pages.get(offset)
            if page is not None:
                return page
            if offset + amount <= self.limit:
                return self.base.read(offset, amount)
        end = min(offset + amount, self.size)  # a short answer makes SQLite fill up with zeros
        parts = []
        while offset < end:
            start = offset % self.page_size
            part = self.page(offset - start)[start : start + end - offset]
            parts.append(part)
            offset += len(part)
        return b"".join(parts)

    def xWrite(self, data: bytes, offset: int) -> None:
        amount = len(data)
        self.size = max(self.size, offset + amount)
        if amount == self.page_size and not offset % amount:
            self.pages[offset] = bytes(data)
            return
        written = 0
        while written < amount:
            start = (offset + written) % self.page_size
            page_offset = offset + written - start
            part = data[written : written + self.page_size - start]
            page = bytearray(self.page(page_offset))
            page[start : start + len(part)] = part
            self.pages[page_offset] = bytes(page)
            written += len(part)

    def xTruncate(self, size: int) -> None:
        if size < self.size:
            self.limit = min(self.limit, size)
            for offset in [offset for offset in self.pages if offset + self.page_size > size]:
                if offset >= size:
                    del self.pages[offset]
                else:
                    self.pages[offset] = self.pages[offset][: size - offset].ljust(self.page_size, b"\0")
        self.size = size

    def xFileSize(self) -> int:
        return self.size

    def xSectorSize(self) -> int:
        return self.page_size
