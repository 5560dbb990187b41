"""``Database``: one database state, a base or a private fork of one, and the views of it.

base = Database.seed("base.db", "CREATE TABLE notes (text)")
with base.fork() as db:
    async with db.tool_call() as call:
        await db.execute("INSERT INTO notes VALUES (:text)", {"text": "hello"})
    call.changes.lines()
"""

from __future__ import annotations

import os
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.base.places import PendingLog
from reward_kit.agent.database.changes import NO_CHANGES, Changes
from reward_kit.agent.database.determinism import read_moment
from reward_kit.agent.database.recorder import diff_databases
from reward_kit.agent.database.scope import CallScope, Scope, current_scope
from reward_kit.agent.database.statement import (
    ExecuteResult,
    Limits,
    Parameters,
    Row,
    Statement,
    SyncStatements,
    first_row_of,
    first_value_of,
    rows_of,
)
from reward_kit.agent.database.turns import Turns
from reward_kit.errors import DatabaseError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Iterable
    from datetime import datetime

    from sqlalchemy import Engine, TextClause
    from sqlalchemy.ext.asyncio import AsyncEngine

    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.turns import Store

Mode = Literal["overlay", "file"]
StrPath = str | os.PathLike[str]

_BASE_REFUSAL = "this database is only read: fork() gives a private copy that can be written to"
_VIEW_REFUSAL = "the database is read-only here"
_CHUNK = 500
"""``executemany`` lets other tasks run after this many parameter sets."""


class _View:
    """The members that all views of a database state have; ``refusal`` is the error of a write."""

    def __init__(self, turns: Turns, refusal: str | None, call: Scope | None = None) -> None:
        self._turns = turns
        self._refusal = refusal
        self._call = call

    @property
    def path(self) -> Path | None:
        """In mode "file" the complete SQLite file that is this database alone, otherwise None."""
        return self._turns.open_store().path

    def whole(self) -> Database:
        """All that there is of this state, for reading."""
        return Database(self._turns, _VIEW_REFUSAL)

    def changes(self, since: Changes | None = None) -> Changes:
        """The inserted, updated and deleted rows against the base, or since an earlier ``changes()``."""
        changes = self._turns.with_store(lambda store: store.changes()).ignoring(self._turns.hidden)
        return changes if since is None else changes.minus(since)

    def equals(self, other: _View, ignore: Collection[str] = (), *, exact: bool = False) -> bool:
        """True if both hold equal rows: 12 and 12.0 are equal, also inside JSON text, unless ``exact``.

        ``ignore`` names what does not count: ``"table.column"``, ``"*.column"`` or ``"table"``.
        """
        if not isinstance(other, _View):
            hint = ": gold_db is None where the row has no actions" if other is None else ""
            raise TypeError(f"equals() takes a database, got {type(other).__name__}{hint}")
        ours, theirs = self._turns, other._turns
        base, other_base = ours.store.base_path, theirs.store.base_path
        if base is other_base or base == other_base or base.samefile(other_base):
            return self.changes().equals(other.changes(), ignore, exact=exact)
        difference = theirs.with_store(
            lambda old: ours.with_store(lambda new: Changes.of(diff_databases(old.query, new.query)))
        )
        return difference.equals(NO_CHANGES, (*ignore, *ours.hidden), exact=exact)


class AsyncView(_View):
    """Statements for ``async def`` functions.

    ``sql`` is one statement, a ``str`` or ``text()``.  Named parameters (``:name``) come from a dict, which
    may hold more than the statement uses; positional ones (``?``) from a list.  All methods raise
    ``DatabaseError`` with SQLite's message; ``QueryTimeoutError`` after 10 s, ``TooManyRowsError`` beyond
    100 000 rows, ``ReadOnlyError`` for a write if only reading is allowed.  ``pending_log`` notes the
    awaitables that were not awaited.
    """

    pending_log: PendingLog | None = None

    def execute(self, sql: str | TextClause, params: Parameters = None) -> Coroutine[Any, Any, ExecuteResult]:
        """Run a statement of any kind."""
        work = self._turns.run(Statement(sql, params, self._refusal, self._call))
        log = self.pending_log
        return work if log is None else log.noted(work, "db.execute", sql)

    def fetch_all(self, sql: str | TextClause, params: Parameters = None) -> Coroutine[Any, Any, list[Row]]:
        """All rows."""
        work = self._turns.run(Statement(sql, params, self._refusal, self._call), rows_of)
        log = self.pending_log
        return work if log is None else log.noted(work, "db.fetch_all", sql)

    def fetch_one(self, sql: str | TextClause, params: Parameters = None) -> Coroutine[Any, Any, Row | None]:
        """The first row, or None."""
        work = self._turns.run(Statement(sql, params, self._refusal, self._call, first=True), first_row_of)
        log = self.pending_log
        return work if log is None else log.noted(work, "db.fetch_one", sql)

    def fetch_val(self, sql: str | TextClause, params: Parameters = None) -> Coroutine[Any, Any, Any]:
        """The first column of the first row, or None."""
        statement = Statement(sql, params, self._refusal, self._call, first=True)
        work = self._turns.run(statement, first_value_of)
        log = self.pending_log
        return work if log is None else log.noted(work, "db.fetch_val", sql)

    def executemany(self, sql: str, params: Iterable[Parameters]) -> Coroutine[Any, Any, int]:
        """Run a statement for each set of parameters, all or none; returns the number of changed rows."""
        work = self._executemany(sql, params)
        log = self.pending_log
        return work if log is None else log.noted(work, "db.executemany", sql)

    async def _executemany(self, sql: str, params: Iterable[Parameters]) -> int:
        changed = 0
        remaining = iter(params)
        async with self.transaction():
            while chunk := list(islice(remaining, _CHUNK)):
                statement = Statement(sql, None, self._refusal, self._call, many=chunk)
                changed += max((await self._turns.run(statement)).rowcount, 0)
        return changed

    def transaction(self) -> Scope:
        """``async with db.transaction():`` keeps the statements in it together, or none of them."""
        return Scope(self._turns, self._call)


class SyncView(_View, SyncStatements):
    """Statements for ``def`` functions, from any thread; parameters and errors are those of ``AsyncView``."""

    def _run(self, sql: str | TextClause, params: Parameters, *, first: bool = False) -> ExecuteResult:
        return self._turns.run_blocking(Statement(sql, params, self._refusal, self._call, first=first))

    def executemany(self, sql: str, params: Iterable[Parameters]) -> int:
        """Run a statement for each set of parameters, all or none; returns the number of changed rows."""
        statement = Statement(sql, None, self._refusal, self._call, many=list(params))
        with self.transaction():
            return max(self._turns.run_blocking(statement).rowcount, 0)

    def transaction(self) -> Scope:
        """``with db.transaction():`` keeps the statements in it together, or none of them."""
        return Scope(self._turns, self._call)


class ReadOnlyDatabase(SyncView):
    """The database of ``def`` rewards: for reading only, in any thread; answers are SQLAlchemy's."""


class ReadOnlyAsyncDatabase(AsyncView):
    """The database of ``async def`` rewards: for reading only."""

    @property
    def sync(self) -> ReadOnlyDatabase:
        """The same database for ``def`` functions."""
        return ReadOnlyDatabase(self._turns, self._refusal)


class SyncDatabase(SyncView):
    """The database of ``def`` tools, for the thread that they run in."""

    @property
    def engine(self) -> Engine:
        """In mode "file" a SQLAlchemy engine on ``path``; ``DatabaseError`` otherwise, and after the call."""
        if self._call is not None:
            self._call.check_open()
        engine: Engine = self._turns.open_store().sync_engine
        return engine


class Database(AsyncView):
    """One database state: a base, which is only read, or a fork of one, which is private and writable.

    Outside of ``tool_call()`` and ``transaction()`` every statement is its own transaction.
    """

    @classmethod
    def seed(
        cls,
        path: StrPath,
        sql: str | None = "",
        *,
        script: Callable[[Any], None] | None = None,
        origin: str = "seed SQL",
        now: datetime | str | None = None,
        mode: Mode = "overlay",
        limits: Limits | None = None,
    ) -> Database:
        """Run ``sql``, then ``script(db)``, write the base to ``path``, and open it; see ``seed_base``."""
        from reward_kit.agent.database.seeding import seed_base

        base = seed_base(path, sql, script=script, origin=origin, now=now)
        return cls(Turns(_store_of(mode).open(base, limits or Limits())), _BASE_REFUSAL)

    @classmethod
    def open(
        cls,
        path: StrPath,
        *,
        delta: bytes | None = None,
        changes: Changes | None = None,
        mode: Mode = "overlay",
        limits: Limits | None = None,
    ) -> Database:
        """Open a base, or a complete SQLite file, to be read and forked.

        With ``delta`` (bytes of ``delta()``) it is the state that these lead to from the base at ``path``, in
        mode "overlay"; ``changes`` are the rows that this changes, if they are known.  Changes of a complete
        file with a ``base.db`` beside it count from that base.  ``DatabaseError`` if the file is missing or
        damaged.
        """
        path, limits = Path(path), limits or Limits()
        if delta is not None:
            from reward_kit.agent.database.overlay_store import OverlayStore

            return cls(Turns(OverlayStore.of_delta(delta, path, limits, changes)), _BASE_REFUSAL)
        beside = path.with_name("base.db")
        base = beside if path.name != beside.name and beside.is_file() else None
        return cls(Turns(_store_of(mode).open(path, limits, base)), _BASE_REFUSAL)

    def fork(
        self,
        *,
        seed: int | Randomness | None = None,
        now: str | datetime | None = None,
        hidden: tuple[str, ...] | None = None,
    ) -> Database:
        """A private, writable copy of the committed state; its changes count from the base.

        With ``seed``, the same statements get the same answers from ``random()`` and ``randomblob()``.  With
        ``now`` (ISO text or datetime; UTC if it names no zone) SQL's clock stands still there.  Without them
        a fork of a fork has those of its origin, as it has the ``hidden`` tables, whose changes are not shown
        and not compared.  The numbers of another database (``randomness``) come from its first draw on.
        ``DatabaseError`` inside a transaction.
        """
        moment = None if now is None else read_moment(now)
        hidden = self._turns.hidden if hidden is None else hidden
        return Database(Turns(self._settled(lambda store: store.fork(seed, moment)), hidden), None)

    def reader(self) -> Database:
        """The same state over a separate connection, for reading; to be closed before this database."""
        return Database(Turns(self._settled(lambda store: store.reader()), self._turns.hidden), _BASE_REFUSAL)

    def _settled(self, work: Callable[[Store], Any]) -> Any:
        return self._turns.with_store(work, settled=True)

    @property
    def mode(self) -> Mode:
        """The way the content is kept: "overlay" (changed pages in memory) or "file" (a complete file)."""
        return self._turns.store.mode

    @property
    def base_path(self) -> Path:
        """The file of the base."""
        return self._turns.store.base_path

    @property
    def base_size(self) -> int:
        """Bytes of the base."""
        return self._turns.store.base_size

    @property
    def is_idle(self) -> bool:
        """True if no statement runs and no tool call or transaction is under way."""
        return not self._turns.root.held()

    @property
    def randomness(self) -> Randomness:
        """The random numbers of this fork."""
        return self._turns.store.randomness

    @property
    def draws(self) -> int:
        """Number of random numbers that a fork with a seed has drawn; of calls that were undone, none."""
        return self.randomness.position

    def note_fault(self, error: BaseException) -> None:
        """Look at an error that a tool raised: the disk may be the reason; see ``check``."""
        self._turns.store.note_fault(error)

    @property
    def fault(self) -> StorageError | None:
        """The error if what was written is lost: the disk of a file is full or broken."""
        return self._turns.store.lost

    def check(self) -> None:
        """Raise ``fault``, if there is one."""
        if self.fault is not None:
            raise self.fault

    @property
    def sync(self) -> SyncDatabase:
        """The same database for ``def`` functions, in any thread."""
        return SyncDatabase(self._turns, self._refusal, self._call)

    @property
    def engine(self) -> AsyncEngine:
        """In mode "file" a SQLAlchemy async engine on ``path``; ``DatabaseError`` otherwise.

        A transaction that is committed through it stays, also if the tool call fails.
        """
        engine: AsyncEngine = self._turns.open_store().engine
        return engine

    def read_only(self) -> ReadOnlyDatabase:
        """The view of ``def`` rewards."""
        return ReadOnlyDatabase(self._turns, _VIEW_REFUSAL)

    def read_only_async(self) -> ReadOnlyAsyncDatabase:
        """The view of ``async def`` rewards, with its own ``pending_log``."""
        view = ReadOnlyAsyncDatabase(self._turns, _VIEW_REFUSAL)
        view.pending_log = PendingLog()
        return view

    def tool_call(self) -> CallScope:
        """``async with db.tool_call() as call:`` is the transaction of one tool call."""
        return CallScope(self._turns, self._call)

    def of_call(self, call: CallScope) -> Database:
        """The same database for the tool of this call, with its own ``pending_log``."""
        database = Database(self._turns, self._refusal, call)
        database.pending_log = PendingLog()
        return database

    async def break_off(self) -> None:
        """Undo a tool call or transaction that ignores its cancellation; refuse further statements in it."""
        await self._turns.break_off()

    def delta(self) -> bytes:
        """Bytes that lead from the base to the committed state; ``DatabaseError`` inside a transaction."""
        delta: bytes = self._settled(lambda store: store.delta())
        return delta

    def export(self, path: StrPath) -> Path:
        """Write the committed state to ``path`` as a complete SQLite file; returns the path.

        ``StorageError`` if it cannot be written (a former file stays), ``DatabaseError`` in a transaction.
        """
        target = Path(path)
        self._settled(lambda store: store.export(target))
        return target

    def close(self) -> None:
        """Stop what is running and release everything; an open transaction is lost.

        A second time does nothing.  ``DatabaseError`` in a tool call on it: its rollout still needs it.
        """
        scope = current_scope.get()
        while scope is not None and not (scope.is_call and scope.turns is self._turns):
            scope = scope.outer
        if scope is not None:
            raise DatabaseError(
                "a tool cannot close its rollout's database", remedy="Leave that out: it is done for you."
            )
        self._turns.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _store_of(mode: Mode) -> Any:
    if mode == "overlay":
        from reward_kit.agent.database.overlay_store import OverlayStore

        return OverlayStore
    if mode == "file":
        from reward_kit.agent.database.file_store import FileStore

        return FileStore
    raise DatabaseError(f'the mode is "overlay" or "file", not {mode!r}')
