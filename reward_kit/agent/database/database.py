"""``Database``: one database state, a base or a private fork of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from reward_kit.agent.base.pending import PendingLog
from reward_kit.agent.database.content import Content
from reward_kit.agent.database.determinism import read_moment
from reward_kit.agent.database.faces import AsyncFace, SyncFace
from reward_kit.agent.database.guards import Limits
from reward_kit.agent.database.scopes import Scope, ToolCall, current_scope, scope_has_ended
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime
    from types import TracebackType

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from reward_kit.agent.database.backend import Mode
    from reward_kit.agent.database.changes import Changes

StrPath = str | os.PathLike[str]

_BASE_REFUSAL = "this database is only read: fork() gives a private copy that can be written to"
_VIEW_REFUSAL = "the database is read-only here"


class View:
    """The members that a database and each view of it have in common; they share their ``content``."""

    content: Content

    @property
    def path(self) -> Path | None:
        """In mode "file" the complete SQLite file that is this database alone, otherwise None."""
        return self.content.connection.while_open(lambda backend: backend.path)

    def changes(self, since: Changes | None = None) -> Changes:
        """The inserted, updated and deleted rows against the base, or since an earlier ``changes()``."""
        return self.content.changes(since)

    def equals(self, other: View, ignore: Collection[str] = ()) -> bool:
        """True if both hold the same rows.

        ``ignore`` names what does not count: ``"table.column"``, ``"*.column"`` or ``"table"``.
        """
        if not isinstance(other, View):
            hint = ": gold_db is None where the row has no actions" if other is None else ""
            raise TypeError(f"equals() takes a database, got {type(other).__name__}{hint}")
        return self.content.equals(other.content, ignore)


class _RewardView(View):
    @property
    def engine(self) -> NoReturn:
        """There is none: it could be used to write."""
        raise DatabaseError(
            "a reward's database has no engine", remedy="Ask `db.execute(...)` with the SQL as text."
        )


class ReadOnlyDatabase(SyncFace, _RewardView):
    """The database of ``def`` rewards: for reading only, in any thread; answers are SQLAlchemy's."""

    def __init__(self, content: Content) -> None:
        super().__init__(content.connection, _VIEW_REFUSAL)
        self.content = content


class ReadOnlyAsyncDatabase(AsyncFace, _RewardView):
    """The database of ``async def`` rewards: for reading only."""

    def __init__(self, content: Content) -> None:
        super().__init__(content.connection, _VIEW_REFUSAL)
        self.content = content
        self.pending_log = PendingLog()


class SyncDatabase(SyncFace, View):
    """The database of ``def`` tools, for the thread that they run in."""

    def __init__(self, content: Content, refusal: str | None, call: Scope | None = None) -> None:
        super().__init__(content.connection, refusal, call)
        self.content = content

    @property
    def engine(self) -> Engine:
        """In mode "file" a SQLAlchemy engine on ``path``; ``DatabaseError`` otherwise, and after the call."""
        if self._call is not None and self._call.over:
            raise scope_has_ended()
        return self.content.connection.while_open(lambda backend: backend.sync_engine)


class Database(AsyncFace, View):
    """One database state: a base, which is only read, or a fork of one, which is private and writable.

    Outside of ``tool_call()`` and ``transaction()`` every statement is a transaction of its own.
    """

    def __init__(self, content: Content, *, writable: bool, call: Scope | None = None) -> None:
        """Not to be called: ``seed``, ``open`` and ``fork`` make databases."""
        super().__init__(content.connection, None if writable else _BASE_REFUSAL, call)
        self.content = content

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
        """Write a base at ``path`` (first ``sql`` is run, then ``script(db)``) and open it.

        ``now`` is the time at which the clock of the seed stands still.  ``BundleError`` with the place
        ``origin:LINE`` for a faulty statement, ``StorageError`` if the file cannot be written. Changes count
        from it, also where a ``base.db`` is beside it.
        """
        from reward_kit.agent.database.base import seed_base
        from reward_kit.agent.database.content import open_backend

        base = seed_base(path, sql, script=script, origin=origin, now=now)
        return cls(Content(open_backend(base, mode), limits or Limits()), writable=False)

    @classmethod
    def open(
        cls,
        path: StrPath,
        *,
        delta: bytes | None = None,
        mode: Mode = "overlay",
        limits: Limits | None = None,
    ) -> Database:
        """Open a base, or a complete SQLite file, to be read and forked.

        With ``delta`` (bytes of ``delta()``) it is the state that these lead to from the base at ``path``, in
        mode "overlay".
        ``changes()`` of a complete file with a ``base.db`` beside it are those since that base.
        ``DatabaseError`` if the file is missing or damaged.
        """
        limits = limits or Limits()
        if delta is None:
            return cls(Content.open(Path(path), mode, limits), writable=False)
        from reward_kit.agent.database.base_image import BaseImage
        from reward_kit.agent.database.delta import unpack_delta
        from reward_kit.agent.database.overlay_backend import OverlayBackend

        overlay = unpack_delta(delta, BaseImage.open(path), f"delta of {path}")
        return cls(Content(OverlayBackend(overlay), limits), writable=False)

    def fork(self, *, seed: int | None = None, now: str | datetime | None = None) -> Database:
        """A private, writable copy of the committed state.

        With ``seed``, ``random()`` and ``randomblob()`` answer from it: the same statements get the same
        answers.  With ``now`` (ISO text or datetime; UTC if it names no zone) SQL's clock stands still there.
        Without them a fork of a fork has those of its origin, and its changes count from where those of its
        origin do.  ``DatabaseError`` inside a transaction.
        """
        return Database(self.content.fork(seed, read_moment(now)), writable=True)

    def reader(self) -> Database:
        """The same state over a connection of its own, for reading; to be closed before this database.

        For a state that is no longer written to and read by many at once.
        """
        return Database(self.content.reader(), writable=False)

    @property
    def mode(self) -> Mode:
        """The way the content is kept: "overlay" (changed pages in memory) or "file" (a complete file)."""
        return self.content.backend.mode

    @property
    def base_size(self) -> int:
        """Bytes of the base."""
        return self.content.backend.base_size

    @property
    def is_idle(self) -> bool:
        """True if no statement runs and no tool call or transaction is under way."""
        return self._connection.is_idle

    @property
    def draws(self) -> int:
        """Number of random numbers that a fork with a seed has drawn; of calls that were undone, none."""
        randomness = self.content.backend.randomness
        return 0 if randomness is None else randomness.position

    def note_fault(self, error: BaseException) -> None:
        """Look at an error that a tool raised: the disk may be the reason; see ``check``."""
        self.content.backend.note_fault(error)

    def check(self) -> None:
        """Raise ``StorageError`` if what was written is lost: the disk of a file is full or broken."""
        if self.content.backend.lost is not None:
            raise self.content.backend.lost

    @property
    def sync(self) -> SyncDatabase:
        """The same database for ``def`` functions, in whichever thread they run."""
        return SyncDatabase(self.content, self._refusal, self._call)

    @property
    def engine(self) -> AsyncEngine:
        """In mode "file" a SQLAlchemy async engine on ``path``; ``DatabaseError`` otherwise.

        A transaction that is committed through it stays, also if the tool call fails.
        """
        return self._connection.while_open(lambda backend: backend.engine)

    def read_only(self) -> ReadOnlyDatabase:
        """The view of ``def`` rewards."""
        return ReadOnlyDatabase(self.content)

    def read_only_async(self) -> ReadOnlyAsyncDatabase:
        """The view of ``async def`` rewards, with a ``pending_log`` of its own."""
        return ReadOnlyAsyncDatabase(self.content)

    def tool_call(self) -> ToolCall:
        """``async with db.tool_call() as call:`` is the transaction of one tool call."""
        return ToolCall(self._connection, self._call)

    def of_call(self, call: ToolCall) -> Database:
        """The same database for the tool of this call, to which all its statements belong.

        Its ``pending_log`` has the statements that the tool did not await.
        """
        database = Database(self.content, writable=self._refusal is None, call=call.scope)
        database.pending_log = PendingLog()
        return database

    async def break_off(self) -> None:
        """Undo a tool call or transaction that is still under way, and let nobody continue in it.

        For calls that ignore their cancellation.
        """
        await self._connection.break_off()

    def delta(self) -> bytes:
        """Bytes that lead from the base to the committed state; ``open(base, delta=...)`` reads them.

        ``DatabaseError`` inside a transaction.
        """
        return self.content.delta()

    def export(self, path: StrPath) -> Path:
        """Write the committed state to ``path`` as a complete SQLite file; returns the path.

        ``StorageError`` if it cannot be written (a former file stays), ``DatabaseError`` inside a
        transaction.
        """
        return self.content.export(Path(path))

    def close(self) -> None:
        """Stop what is running and release everything; an open transaction is lost.

        A second time does nothing.  ``DatabaseError`` in a tool call on it: its rollout still needs it.
        """
        scope = current_scope.get()
        if scope is not None and scope.connection is self._connection and scope.top.is_call:
            raise DatabaseError(
                "a tool cannot close its rollout's database", remedy="Leave that out: it is done for you."
            )
        self.content.close()

    def __enter__(self) -> Database:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
