"""Open connections that the forks of one base use in turn.

A fork needs a connection for as long as a statement or a transaction of it runs: a hundredth of its life, the
rest is waiting for models.  A connection that goes from fork to fork keeps what SQLite has read of the schema
and the statements that it has prepared, which cost more than running them; a fork that waits holds none.

What a connection remembers of its user goes with the user (``Seat``): random numbers, the last rowid, how
many rows were changed.  A fork whose schema was changed, or that has temporary tables, keeps its connection
to itself.
"""

from __future__ import annotations

import itertools
import secrets
import weakref
from typing import TYPE_CHECKING

import apsw

from reward_kit.agent.database.determinism import Randomness
from reward_kit.agent.database.guards import PROGRESS_STEPS, Limits, numeric_limits
from reward_kit.agent.database.page_file import SwitchedFile
from reward_kit.agent.database.statement import Judge
from reward_kit.agent.database.vfs import connect_overlay

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.database.base_image import BaseImage
    from reward_kit.agent.database.overlay import Overlay

MOST_IDLE = 64
"""So many connections of a base wait for their next user; each holds some 100 KB of SQLite's memory.

More than a few there are only where tools wait for something in the middle of their calls, and then they are
soon needed again.
"""

_SAME_SCHEMA = (slice(16, 24), slice(40, 48), slice(52, 72))
"""Parts of a database's header that differ if its schema, page size or encoding does."""


class Seat:
    """What SQLite remembers of the user of a connection; it lives as long as the fork.

    ``randomness`` gives its random numbers (unpredictable ones if it is None), ``inserted`` is the rowid
    inserted last, ``changed`` the number of rows that the last writing statement changed, ``changed_in_all``
    that of all together, ``writes`` the number of statements that may have written.
    """

    __slots__ = ("changed", "changed_in_all", "inserted", "randomness", "writes")

    def __init__(self, randomness: Randomness | None) -> None:
        self.randomness = randomness or Randomness(secrets.randbits(128))
        self.inserted = 0
        self.changed = 0
        self.changed_in_all = 0
        self.writes = 0


class PooledConnection:
    """A guarded connection, for one fork of its base at a time: between ``enter`` and ``leave``."""

    def __init__(self, overlay: Overlay, limits: Limits) -> None:
        base = overlay.base
        self._file = SwitchedFile(overlay.file)
        self.connection = connection = connect_overlay(self._file)
        self.judge = Judge(limits, base.size)
        self._memory = memory = _Memory(connection, self.judge)
        self._stay = 0
        self._is_shared = False
        connection.execute(overlay.settings()).fetchall()
        connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 1)
        connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
        for limit, value in numeric_limits(limits):
            connection.limit(limit, value)
        pages = (base.size + limits.max_growth_bytes) // base.page_size
        connection.execute(f"PRAGMA max_page_count={pages}").fetchall()
        memory.install()
        connection.set_rollback_hook(_pruning(self._file))
        # in statements that were prepared while no session was there, SQLite may delete rows unseen
        self._standing_session = apsw.Session(connection, "main")
        self._standing_session.enabled = False
        self.judge.authorizer.schema_touched = not _has_schema_of_base(overlay)
        connection.authorizer = self.judge.authorizer
        connection.set_progress_handler(self.judge.watch, PROGRESS_STEPS)

    def enter(self, overlay: Overlay, seat: Seat) -> None:
        """Work on ``overlay`` from now on, for ``seat``."""
        content = overlay.file
        self._is_shared = self._stay == 0 or content.stay != self._stay
        if self._is_shared:
            self._file.exchange(content)
        else:
            self._file.content = content  # neither has met another since: what is cached holds
        content.opened = True
        self._memory.recall(seat)

    def leave(self) -> None:
        """Let go of the overlay; no statement may be running, no transaction open."""
        content = self._file.content
        assert content is not None
        self._memory.keep()
        if self._is_shared:  # else what is cached would be read again, for the want of the marks
            content.forget_marks()
        content.opened = False
        self._stay = content.stay = next(_stays)
        self._file.content = None

    @property
    def may_go_on(self) -> bool:
        """Whether others may have it: the schema that it knows is theirs, and nothing is under way."""
        return not (self.judge.authorizer.schema_touched or self.connection.in_transaction)

    def close(self) -> None:
        """Close the connection; an open transaction is lost."""
        self._standing_session.close()
        self.connection.close(True)
        self._file.content = None

    def __del__(self) -> None:
        # apsw for Python 3.10 never frees a connection that has an open session
        if hasattr(self, "_standing_session"):
            self._standing_session.close()


class _Memory:
    """What a connection remembers of its present user, and the SQL functions that tell it.

    Apart from the connection, which holds it: no collector looks into SQLite's own references.
    """

    def __init__(self, connection: apsw.Connection, judge: Judge) -> None:
        self._connection = weakref.ref(connection)
        self._judge = judge
        self._seat = _NOBODY
        self._changed_before = 0
        self._left_over = 0

    def install(self) -> None:
        """Define the functions that answer from the seat."""
        functions: list[tuple[str, Callable[..., int | bytes], int]] = [
            ("random", self._random, 0),
            ("randomblob", self._random_blob, 1),
            ("changes", self._changes, 0),
            ("total_changes", self._total_changes, 0),
        ]
        for name, function, arguments in functions:
            # innocuous: also where the schema calls them, in DEFAULT, CHECK, triggers and views
            self._opened.create_scalar_function(name, function, arguments, flags=apsw.SQLITE_INNOCUOUS)

    def recall(self, seat: Seat) -> None:
        """Answer for ``seat`` from now on."""
        connection = self._opened
        self._seat = seat
        self._judge.writes = seat.writes
        self._judge.changed_rows = False
        self._changed_before = connection.total_changes()
        self._left_over = connection.changes()
        connection.set_last_insert_rowid(seat.inserted)

    def keep(self) -> None:
        """Note in the seat what has come to it."""
        seat, connection = self._seat, self._opened
        seat.changed, seat.changed_in_all = self._changes(), self._total_changes()
        seat.inserted = connection.last_insert_rowid()
        seat.writes = self._judge.writes
        self._seat = _NOBODY

    @property
    def _opened(self) -> apsw.Connection:
        connection = self._connection()
        assert connection is not None, "the connection holds this, not the other way round"
        return connection

    def _changes(self) -> int:
        changed = self._opened.changes()
        return changed if self._judge.changed_rows or changed != self._left_over else self._seat.changed

    def _total_changes(self) -> int:
        return self._seat.changed_in_all + self._opened.total_changes() - self._changed_before

    def _random(self) -> int:
        return self._seat.randomness.integer()

    def _random_blob(self, length: object) -> bytes:
        return self._seat.randomness.blob(length)


_NOBODY = Seat(None)
_stays = itertools.count(1)


class ConnectionPool:
    """The connections that wait for their next user: of one base, with the same limits."""

    def __init__(self) -> None:
        self._idle: list[PooledConnection] = []

    def take(self, overlay: Overlay, limits: Limits) -> PooledConnection:
        """A connection that ``overlay``, a fork with the schema of the base, can enter."""
        try:
            return self._idle.pop()
        except IndexError:
            return PooledConnection(overlay, limits)

    def give(self, connection: PooledConnection) -> None:
        """Let others have a connection that was left."""
        if len(self._idle) < MOST_IDLE:
            self._idle.append(connection)
        else:
            connection.close()


_pools: weakref.WeakKeyDictionary[BaseImage, dict[Limits, ConnectionPool]] = weakref.WeakKeyDictionary()


def pool_of(overlay: Overlay, limits: Limits) -> ConnectionPool:
    """The pool for ``overlay``: that of its base, or one of its own if its schema is another."""
    if not _has_schema_of_base(overlay):
        return ConnectionPool()
    return _pools.setdefault(overlay.base, {}).setdefault(limits, ConnectionPool())


def _has_schema_of_base(overlay: Overlay) -> bool:
    page = overlay.file.pages.get(0)
    header = overlay.base.header
    return page is None or all(page[part] == header[part] for part in _SAME_SCHEMA)


def _pruning(file: SwitchedFile) -> Callable[[], None]:
    """A rollback hook; it holds nothing but ``file``, which apsw could not let go of otherwise."""

    def prune() -> None:
        if file.content is not None:
            file.content.prune_if_grown()

    return prune
