"""The two SQLite VFSs of this package, registered when first needed.

``reward_kit_overlay``: main databases are the objects of ``page_file.py``, journals and temporary files live
in memory.
``reward_kit_clock``: plain files, with the clock of ``clock.py``.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref

import apsw

from reward_kit.agent.database.clock import ClockMethods
from reward_kit.agent.database.page_file import MemoryFile, PageFile, SwitchedFile

_OVERLAY = "reward_kit_overlay"
_CLOCK = "reward_kit_clock"

_MainDatabase = PageFile | SwitchedFile


class _OverlayVFS(ClockMethods, apsw.VFS):
    def __init__(self) -> None:
        super().__init__(_OVERLAY, "")
        self._numbers = itertools.count(1)
        self._files: weakref.WeakValueDictionary[str, _MainDatabase] = weakref.WeakValueDictionary()

    def enter(self, file: _MainDatabase) -> str:
        """A name under which SQLite can open ``file``."""
        name = f"fork{next(self._numbers)}"
        self._files[name] = file
        return name

    def xFullPathname(self, name: str) -> str:
        return name

    def xOpen(  # type: ignore[override]  # apsw takes any object that has the methods of its VFSFile
        self, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> _MainDatabase | MemoryFile:
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
        journals = self._journals(path)
        return journals.setdefault(path, MemoryFile())

    def xAccess(self, path: str, _flags: int) -> bool:
        return path in self._journals(path)

    def xDelete(self, path: str, _sync_folder: bool) -> None:
        self._journals(path).pop(path, None)

    def _journals(self, path: str) -> dict[str, MemoryFile]:
        file = self._files.get(path.partition("-")[0])
        return {} if file is None else file.journals


class _ClockVFS(ClockMethods, apsw.VFS):
    def __init__(self) -> None:
        super().__init__(_CLOCK, "")

    def xFullPathname(self, name: str) -> str:
        # apsw takes it for an error when SQLite's own method tells that there are links in the path
        return os.path.realpath(name)


def _spare_lookaside() -> None:
    """Keep SQLite from taking 48 KB for small allocations per connection, which is most of a fork's memory.

    It can be told so only before it is used. Where other code of the process has connections or a VFS of its
    own already, it stays as it is.
    """
    if apsw.connections() or not all(name.startswith(_BUILT_IN) for name in apsw.vfs_names()):
        return
    apsw.shutdown()
    apsw.config(apsw.SQLITE_CONFIG_LOOKASIDE, 0, 0)
    apsw.initialize()


_BUILT_IN = ("memdb", "unix", "win32")
_spare_lookaside()
_registering = threading.Lock()
_overlay_vfs: _OverlayVFS | None = None
_clock_vfs: _ClockVFS | None = None


def connect_overlay(file: _MainDatabase) -> apsw.Connection:
    """A bare connection to ``file``, which must not be open."""
    global _overlay_vfs
    with _registering:
        vfs = _overlay_vfs = _overlay_vfs or _OverlayVFS()
    return apsw.Connection(vfs.enter(file), vfs=_OVERLAY, flags=apsw.SQLITE_OPEN_READWRITE)


def connect_file(path: str | os.PathLike[str], *, create: bool = False) -> apsw.Connection:
    """A bare connection to a plain file whose clock is ``set_clock``'s."""
    global _clock_vfs
    with _registering:
        _clock_vfs = _clock_vfs or _ClockVFS()
    flags = apsw.SQLITE_OPEN_READWRITE | (apsw.SQLITE_OPEN_CREATE if create else 0)
    return apsw.Connection(os.fspath(path), vfs=_CLOCK, flags=flags)
