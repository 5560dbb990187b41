"""The content of one database, which all its views share: the connection to it, and its changes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from reward_kit.agent.database.connection import Connection
from reward_kit.agent.database.table_diff import diff_databases
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime
    from pathlib import Path

    from reward_kit.agent.database.backend import Backend, Mode
    from reward_kit.agent.database.changes import Changes
    from reward_kit.agent.database.guards import Limits

_Result = TypeVar("_Result")


class Content:
    """``original`` is the base that this complete file was once a fork of."""

    def __init__(self, backend: Backend, limits: Limits, original: Content | None = None) -> None:
        self.backend = backend
        self.limits = limits
        self.original = original
        self.connection = Connection(backend, limits)

    @classmethod
    def open(cls, path: Path, mode: Mode, limits: Limits) -> Content:
        """A base, a complete file with the base beside it as its original."""
        backend = open_backend(path, mode)
        base = path.with_name("base.db")
        original = None
        if path.name != base.name and base.is_file() and same_file(backend.base_path, path):
            original = cls(open_backend(base, mode), limits)
        return cls(backend, limits, original)

    def changes(self, since: Changes | None = None) -> Changes:
        """The rows that differ from the base, or from the state whose changes ``since`` are."""
        if self.original is not None:
            changes = difference(self.original, self)
        else:
            known = self.connection.while_open(lambda backend: backend.known_changes())
            changes = (
                self.connection.with_backend(lambda backend: backend.changes()) if known is None else known
            )
        return changes if since is None else changes.minus(since)

    def equals(self, other: Content, ignore: Collection[str] = ()) -> bool:
        """True if both hold the same rows, but for ``ignore``."""
        if self.original is other.original and same_file(self.backend.base_path, other.backend.base_path):
            return self.changes().equals(other.changes(), ignore)
        return not difference(other, self).ignoring(ignore)

    def fork(self, seed: int | None, now: datetime | None) -> Content:
        """A private copy of the committed state."""
        return self._akin(self._settled(lambda: self.backend.fork(seed, now)))

    def reader(self) -> Content:
        """The committed state over a connection of its own, which has to be closed before this one."""
        return self._akin(self._settled(self.backend.reader))

    def export(self, path: Path) -> Path:
        """Write the committed state as a complete SQLite file."""
        return self._settled(lambda: self.backend.export(path))

    def delta(self) -> bytes:
        """The bytes that lead from the base to the committed state."""
        return self._settled(self.backend.delta)

    def close(self) -> None:
        """Close everything; a second time does nothing."""
        if self.connection.closed:
            return
        self.connection.close()
        if self.original is not None:
            self.original.close()

    def _akin(self, backend: Backend) -> Content:
        """The content of a copy, whose changes count from where these do."""
        # the original is a base, which may be read over more connections than one
        original = None if self.original is None else Content(self.original.backend, self.limits)
        return Content(backend, self.limits, original)

    def _settled(self, work: Callable[[], _Result]) -> _Result:
        """The result of ``work``, done while no statement runs and no transaction is open."""

        def work_outside_transactions(backend: Backend) -> _Result:
            if backend.in_transaction:
                raise DatabaseError("a transaction is open", remedy="Do this after the tool call.")
            return work()

        if not self.backend.is_connected:
            return work()
        return self.connection.with_backend(work_outside_transactions)


def open_backend(path: Path, mode: Mode) -> Backend:
    """The content of the file at ``path``, for reading and forking."""
    if "\0" in str(path):
        raise DatabaseError("the path has a NUL character", place=repr(str(path)))
    if mode == "overlay":
        from reward_kit.agent.database.overlay_backend import OverlayBackend

        return OverlayBackend.open(path)
    if mode == "file":
        from reward_kit.agent.database.file_backend import FileBackend

        return FileBackend.open(path)
    raise DatabaseError(f'the mode is "overlay" or "file", not {mode!r}')


def same_file(path: Path, other: Path) -> bool:
    """True if two paths lead to one file, for example because it is hard-linked."""
    return path == other or (path.exists() and other.exists() and path.samefile(other))


def difference(before: Content, after: Content) -> Changes:
    """The changes that lead from one database to another, whatever bases they have."""
    return before.connection.with_backend(
        lambda old: after.connection.with_backend(lambda new: diff_databases(old.query, new.query))
    )
