"""Copy-on-write forks of a base: the base is read, changed pages are kept in a dict.

A fork costs what opening a SQLite connection costs, whatever the size of the base; it takes no descriptor
and no thread, and writes nothing to disk.  SQLite reaches the pages through a VFS, so every SQL feature works
as on a plain file.
"""

from __future__ import annotations

import weakref

import apsw

from reward_kit.agent.database.base_image import BaseImage, foreign_keys_on
from reward_kit.agent.database.page_file import PageFile
from reward_kit.agent.database.vfs import connect_overlay
from reward_kit.errors import DatabaseError

_LARGE_BASE = 16 << 20
_PRAGMAS = "PRAGMA locking_mode=EXCLUSIVE; PRAGMA journal_mode=MEMORY; PRAGMA cache_size=-%d"
"""Exclusive locking spares locks and a look at the change counter per statement."""


class Overlay:
    """The state of one fork: ``base`` plus the pages that differ from it.

    ``now`` is the Julian day at which the fork's clock stands still, or ``None``; whoever runs statements
    passes it to ``set_clock``.
    """

    def __init__(self, base: BaseImage, file: PageFile | None = None) -> None:
        self.base = base
        self.now: float | None = None
        self.file = file or PageFile(base)
        self._connection: weakref.ref[apsw.Connection] | None = None

    def connect(self) -> apsw.Connection:
        """Open the one connection that this state may have at a time.

        ``DatabaseError`` if another one is still open: without locks the two would destroy each other's
        pages.
        """
        if self._open_connection() is not None:
            raise DatabaseError("this fork has an open connection already", place=str(self.base.path))
        connection = connect_overlay(self.file)
        cache = 2000 if self.base.size > _LARGE_BASE else 256
        connection.execute(_PRAGMAS % cache).fetchall()
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_FKEY, int(self.foreign_keys))
        connection.set_rollback_hook(self.file.prune_if_grown)
        self._connection = weakref.ref(connection)
        return connection

    def fork(self) -> Overlay:
        """A private copy of the committed state; costs time in proportion to the changed pages.

        ``DatabaseError`` inside a transaction, and when the base was changed on disk.
        """
        self.settle()
        copy = Overlay(self.base, self.file.copy())
        copy.now = self.now
        return copy

    def settle(self) -> None:
        """Check that the pages are a committed state of an intact base; drop those that equal the base."""
        connection = self._open_connection()
        if connection is not None and connection.in_transaction:
            raise DatabaseError("a transaction is open", remedy="Commit or roll it back first.")
        self.base.check_intact()
        self.file.prune()

    def changed_pages(self) -> list[int]:
        """Numbers (from 1, as SQLite counts) of the pages that differ from the base, ascending."""
        self.file.prune()
        return [offset // self.base.page_size + 1 for offset in sorted(self.file.pages)]

    @property
    def pristine(self) -> bool:
        """True if the state is the base itself."""
        self.file.prune()
        return not self.file.pages and self.file.size == self.base.size

    @property
    def schema_cookie(self) -> int:
        """The number that SQLite raises with every change of the schema."""
        return int.from_bytes(self.file.pages.get(0, self.base.header)[40:44], "big")

    @property
    def foreign_keys(self) -> bool:
        """True if the seed switched foreign keys on."""
        return foreign_keys_on(self.file.pages.get(0, self.base.header))

    def _open_connection(self) -> apsw.Connection | None:
        if not self.file.opened or self._connection is None:
            return None
        return self._connection()
