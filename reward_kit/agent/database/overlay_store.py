"""Mode "overlay": ``apsw`` on a connection whose pages are a base and what differs from it."""

from __future__ import annotations

import threading
import weakref
from contextlib import closing, contextmanager
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

import apsw

from reward_kit.agent.database.changes import NO_CHANGES, Changes
from reward_kit.agent.database.connection import Connection, Counters
from reward_kit.agent.database.determinism import Randomness
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.recorder import Recorder, Schema, diff_databases, read_schema
from reward_kit.agent.database.vfs import BaseImage, freeze_clock
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator
    from datetime import datetime
    from pathlib import Path

    from reward_kit.agent.database.database import Mode
    from reward_kit.agent.database.recorder import Written
    from reward_kit.agent.database.statement import ExecuteResult, Limits, Statement

_MANY_PAGES = 2000
"""Above this number of changed pages it does not pay to find out which tables they belong to."""
MOST_CONNECTIONS = 100
"""Connections that the forks of a base share, as long as no more of them are in a transaction."""


class _Connections:
    """The connections to a base, each lent to one fork at a time, which keeps it until another needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._lent: dict[Connection, OverlayStore] = {}
        self._closed = False

    def lend(self, store: OverlayStore) -> Connection:
        """A connection for ``store``; its cache may be of another state."""
        with self._lock:
            connection = self._idle.pop() if self._idle else None
            if connection is None and len(self._lent) >= MOST_CONNECTIONS:
                connection = self._take_back()
            connection = connection or Connection(store.overlay, store.limits)
            self._lent[connection] = store
            return connection

    def _take_back(self) -> Connection | None:
        """The connection of the fork that has used its own least recently, of those that can do without."""
        for connection in sorted(self._lent, key=attrgetter("last_use")):
            store = self._lent[connection]
            if store.in_use.acquire(blocking=False):
                try:
                    left = store.part_with_connection()
                    if left or not store.in_transaction:  # else the fork keeps it for good
                        del self._lent[connection]
                finally:
                    store.in_use.release()
                if left:
                    return connection
        return None

    def end_loan(self, connection: Connection, *, left: bool) -> None:
        """Keep the connection of a closed fork for another, if it has ``left`` the fork; else close it."""
        with self._lock:
            self._lent.pop(connection, None)
            if left and not self._closed and len(self._lent) + len(self._idle) < MOST_CONNECTIONS:
                self._idle.append(connection)
                return
        connection.sqlite.close(True)

    def close(self) -> None:
        """Close those that are not lent, and keep no others."""
        with self._lock:
            self._closed = True
            self._lent.clear()
            while self._idle:
                self._idle.pop().sqlite.close(True)


class OverlayStore:
    """The state of a fork: pages (``overlay``), random numbers, clock (``now``), and the record of writes.

    It borrows a connection from its base for its first statement, and anew if another fork took it.  Only who
    holds ``in_use`` may use it.  ``is_shared``: others may write to it, so a tool call takes its turn when it
    starts.  ``lost`` is the error to raise if the disk did not keep what was written.
    """

    mode: Mode = "overlay"
    begin_sql = "BEGIN"
    is_shared = False
    path = None
    lost = None

    def __init__(
        self,
        overlay: Overlay,
        limits: Limits,
        randomness: Randomness | None = None,
        now: datetime | None = None,
        *,
        connections: _Connections | None = None,
    ) -> None:
        self.limits = limits
        self.randomness = randomness or Randomness(None)
        self.now = now
        self.overlay = overlay
        self.base_path, self.base_size = overlay.base.path, overlay.base.size
        self._frozen = None if now is None else now.timestamp()
        self.in_use = threading.Lock()
        self._is_base = connections is None
        self._connections = connections or _Connections()
        self._connection: Connection | None = None
        self._counters = Counters()

    @classmethod
    def open(cls, path: Path, limits: Limits, base: Path | None = None) -> OverlayStore:
        """A base or a complete file; with ``base`` the state of the file as one of that base."""
        image = BaseImage.open(path)
        return cls(Overlay.between(BaseImage.open(base), image) if base else Overlay(image), limits)

    @classmethod
    def of_delta(
        cls, delta: bytes, path: Path, limits: Limits, changes: Changes | None = None
    ) -> OverlayStore:
        """The state to which ``delta`` leads from the base at ``path``, with these ``changes`` if known."""
        store = cls(Overlay.from_delta(delta, BaseImage.open(path), f"delta of {path}"), limits)
        if changes is not None:
            store.recorder = store._recorder_after(changes)
        return store

    @property
    def engine(self) -> NoReturn:
        """Raise ``DatabaseError``: only a database of mode "file" has an engine."""
        raise DatabaseError(
            "this database has no engine, because it has no file",
            remedy='Write `ToolRegistry(..., database="file")` to have one.',
        )

    sync_engine = engine

    @property
    def in_transaction(self) -> bool:
        """True while a transaction is open."""
        return self._connection is not None and self._connection.sqlite.in_transaction

    def _connected(self) -> Connection:
        if self._connection is None:
            self._borrows = self.overlay.is_reachable
            if self._borrows:
                connection = self._connections.lend(self)
            else:
                connection = Connection(self.overlay, self.limits)
            connection.serve(self.overlay, self.randomness, self.recorder, self._counters)
            self._connection = connection
        return self._connection

    def part_with_connection(self) -> bool:
        """Leave the connection to another fork, until this one needs one again; False if it cannot now."""
        if self._connection is None or not self._connection.leave():
            return False
        self._connection = None
        return True

    @cached_property
    def recorder(self) -> Recorder:
        """The record of writes, made for the first statement."""
        pristine = self.overlay.pristine
        return self._recorder_after(
            NO_CHANGES if pristine else Changes(partial(overlay_changes, self.overlay.fork()))
        )

    def _recorder_after(self, settled: Changes, log: Iterable[Written] = ()) -> Recorder:
        return Recorder(_schema_of(self.overlay.base), self._compare, self.randomness, settled, log)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query that this package makes."""
        rows: list[tuple[Any, ...]] = self._connected().sqlite.execute(sql).fetchall()
        return rows

    def control(self, sql: str) -> None:
        """Run a statement of this package's own (BEGIN, COMMIT ...)."""
        try:
            (self._connection or self._connected()).sqlite.execute(sql)
        except apsw.Error as error:
            raise DatabaseError(str(error)) from error

    def run(self, statement: Statement) -> ExecuteResult:
        """Run a statement and fetch its rows.

        ``DatabaseError`` with SQLite's message; ``NotNowError`` if it holds up the event loop.
        """
        connection = self._connection or self._connected()
        if self._frozen is not None:
            freeze_clock(self._frozen)
        try:
            return connection.run(statement)
        finally:
            if self._frozen is not None:
                freeze_clock(None)

    def changes(self) -> Changes:
        """The rows that differ from the base, those of an open transaction included."""
        return self.recorder.total()

    def _compare(self, unchanged: Collection[str]) -> Changes:
        with _faults_of_reading(), closing(Overlay(self.overlay.base).connect()) as before:
            return Changes.of(diff_databases(before.execute, self.query, unchanged))

    def note_fault(self, error: BaseException) -> None:
        """Do nothing: nothing is written to a disk."""

    def fork(self, seed: int | Randomness | None, now: datetime | None) -> OverlayStore:
        """A private copy of the committed state, with its own random numbers and clock if they are given."""
        randomness = self.randomness.fork(seed)
        overlay = self.overlay.fork()
        copy = OverlayStore(overlay, self.limits, randomness, now or self.now, connections=self._connections)
        recorder: Recorder | None = vars(self).get("recorder")
        if recorder is not None and recorder.exact:
            copy.recorder = copy._recorder_after(recorder.settled, recorder.log)
            copy.recorder.known = recorder.known
        return copy

    def reader(self) -> OverlayStore:
        """The committed state for reading only; to be closed before this one."""
        return self.fork(None, None)

    def export(self, path: Path) -> None:
        """Write the committed state as a complete SQLite file."""
        self.overlay.export(path)

    def delta(self) -> bytes:
        """The bytes that lead from the base to the committed state."""
        return self.overlay.delta()

    def close(self) -> None:
        """Close the connection, or leave it to a later fork; an open transaction is lost."""
        connection, self._connection = self._connection, None
        vars(self).pop("recorder", None)
        if connection is not None:
            self._connections.end_loan(connection, left=self._borrows and connection.leave())
        if self._is_base:
            self._connections.close()


_schemas: weakref.WeakKeyDictionary[BaseImage, Schema] = weakref.WeakKeyDictionary()


def _schema_of(base: BaseImage) -> Schema:
    """The schema of ``base``, read once per process."""
    schema = _schemas.get(base)
    if schema is None:
        with closing(Overlay(base).connect()) as connection:
            schema = _schemas[base] = read_schema(connection.execute)
    return schema


def overlay_changes(overlay: Overlay) -> Changes:
    """The changes from the base to the committed state of ``overlay``, found by comparing the two.

    Only tables that have changed pages are read.  ``DatabaseError`` if SQLite cannot read the changes.
    """
    if overlay.pristine:
        return Changes()
    with (
        _faults_of_reading(),
        closing(Overlay(overlay.base).connect()) as before,
        closing(overlay.fork().connect()) as after,
    ):
        unchanged = _unchanged_tables(before, after, overlay)
        return Changes.of(diff_databases(before.execute, after.execute, unchanged))


@contextmanager
def _faults_of_reading() -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError as error:
        raise DatabaseError(f"a text in the database is not UTF-8: {error}") from error
    except apsw.Error as error:
        raise DatabaseError(f"cannot tell what was changed: {error}") from error


def _unchanged_tables(before: apsw.Connection, after: apsw.Connection, overlay: Overlay) -> set[str]:
    """Tables that start at the same page in both and have no changed page, hence the same rows."""
    if "ENABLE_DBSTAT_VTAB" not in apsw.compile_options or len(overlay.pages) > _MANY_PAGES:
        return set()
    roots = "SELECT name, rootpage FROM sqlite_master WHERE type = 'table' AND rootpage > 0"
    same = set(before.execute(roots)) & set(after.execute(roots))
    numbers = ",".join(str(offset // overlay.base.page_size + 1) for offset in overlay.pages)
    changed = f"SELECT DISTINCT name FROM dbstat WHERE pageno IN ({numbers})"  # noqa: S608 - integers
    return {name for name, _ in same} - {name for (name,) in after.execute(changed)}
