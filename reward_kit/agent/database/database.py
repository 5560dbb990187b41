"""``Database``: one database state, a base or a private fork of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from reward_kit.agent.database.async_face import AsyncFace
from reward_kit.agent.database.content import Content, same_file
from reward_kit.agent.database.determinism import read_moment
from reward_kit.agent.database.guards import Limits
from reward_kit.agent.database.scopes import ToolCall, break_off
from reward_kit.agent.database.sync_face import SyncFace
from reward_kit.agent.database.turns import enclosing_scope, scope_has_ended
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime
    from types import TracebackType

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from reward_kit.agent.database.changes import Changes
    from reward_kit.agent.database.content import Keep, Mode, State
    from reward_kit.agent.database.turns import Scope

StrPath = str | os.PathLike[str]

_BASE_REFUSAL = "this database is only read: fork() gives a private copy that can be written to"
_VIEW_REFUSAL = "the database is read-only here"


class View:
    """What a database and each view of it have in common; ``content`` is what they share."""

    content: Content

    @property
    def path(self) -> Path | None:
        """In mode "file" the complete SQLite file that is this database alone, otherwise ``None``."""
        return self.content.path

    def changes(self, since: Changes | None = None) -> Changes:
        """The inserted, updated and deleted rows against the base, or since an earlier ``changes()``."""
        return self.content.changes(since)

    def equals(self, other: View, ignore: Collection[str] = ()) -> bool:
        """Whether both hold the same rows.

        ``ignore`` names what does not count: ``"table.column"``, ``"*.column"`` or ``"table"``.
        """
        if not isinstance(other, View):
            hint = ": gold_db is None where the row has no actions" if other is None else ""
            raise TypeError(f"equals() takes a database, got {type(other).__name__}{hint}")
        return self.content.equals(other.content, ignore)


class ReadOnlyDatabase(SyncFace, View):
    """What ``def`` rewards hold: for reading only, on whichever thread; answers are SQLAlchemy's."""

    def __init__(self, content: Content) -> None:
        super().__init__(content.connection, _VIEW_REFUSAL)
        self.content = content

    @property
    def engine(self) -> NoReturn:
        """There is none: whoever holds it could write."""
        raise _no_engine_for_rewards()


class ReadOnlyAsyncDatabase(AsyncFace, View):
    """What ``async def`` rewards hold: for reading only."""

    def __init__(self, content: Content) -> None:
        super().__init__(content.connection, _VIEW_REFUSAL)
        self.content = content

    @property
    def engine(self) -> NoReturn:
        """There is none: whoever holds it could write."""
        raise _no_engine_for_rewards()


class SyncDatabase(SyncFace, View):
    """What ``def`` tools hold: a database for the thread that they run in."""

    def __init__(self, content: Content, refusal: str | None, call: Scope | None = None) -> None:
        super().__init__(content.connection, refusal, call)
        self.content = content

    @property
    def engine(self) -> Engine:
        """In mode "file" a SQLAlchemy engine on ``path``; ``DatabaseError`` otherwise, and after the call."""
        if self._call is not None and self._call.over:
            raise scope_has_ended()
        return self.content.sync_engine


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

        state = _open_state(seed_base(path, sql, script=script, origin=origin, now=now), mode)
        return cls(Content(state, limits or Limits()), writable=False)

    @classmethod
    def open(cls, path: StrPath, *, mode: Mode = "overlay", limits: Limits | None = None) -> Database:
        """Open a base, a complete SQLite file or a delta (``.dbd``), to be read and forked.

        ``changes()`` of a complete file with a ``base.db`` beside it are those since that base.  Mode
        "overlay" needs the package apsw; without it the mode is "file".  ``DatabaseError`` if the file is
        missing or damaged.
        """
        place = Path(path)
        if "\0" in str(place):
            raise DatabaseError("the path has a NUL character", place=repr(str(place)))
        limits = limits or Limits()
        state = _open_state(place, mode)
        base = place.with_name("base.db")
        original = None
        if place.name != base.name and base.is_file() and same_file(state.base_path, place):
            original = Content(_open_state(base, mode), limits)
        return cls(Content(state, limits, original), writable=False)

    def fork(self, *, seed: int | None = None, now: str | datetime | None = None) -> Database:
        """A private, writable copy of the committed state.

        With ``seed``, ``random()`` and ``randomblob()`` answer from it: the same statements get the same
        answers.  With ``now`` (ISO text or datetime; UTC if it names no zone) SQL's clock stands still there.
        A fork of a fork goes on with those of its origin where they are not given, and the changes of a fork
        count from where those of its origin do.  ``DatabaseError`` inside
        a transaction.
        """
        return Database(self.content.fork(seed, read_moment(now)), writable=True)

    def reader(self) -> Database:
        """The same state over a connection of its own, for reading; to be closed before this database.

        For a state that nobody writes to any more and many read at once.
        """
        return Database(self.content.reader(), writable=False)

    @property
    def mode(self) -> Mode:
        """How the content is kept: "overlay" (changed pages in memory) or "file" (a complete file)."""
        return self.content.state.mode

    @property
    def base_size(self) -> int:
        """Bytes of the base."""
        return self.content.state.base_size

    @property
    def is_idle(self) -> bool:
        """Whether no statement runs and no tool call or transaction is under way."""
        return self._connection.turns.are_free

    @property
    def draws(self) -> int:
        """How many random numbers a fork with a seed has drawn; of calls that were rolled back, none."""
        randomness = self.content.state.randomness
        return 0 if randomness is None else randomness.position

    def note_fault(self, error: BaseException) -> None:
        """Heed what a tool raised: it may have come of the disk; see ``check``."""
        self.content.state.note_fault(error)

    def check(self) -> None:
        """Raise ``StorageError`` if what was written is lost: the disk of a file is full or broken."""
        if self.content.state.lost is not None:
            raise self.content.state.lost

    @property
    def sync(self) -> SyncDatabase:
        """The same database for ``def`` functions, in whichever thread they run."""
        return SyncDatabase(self.content, self._refusal, self._call)

    @property
    def engine(self) -> AsyncEngine:
        """In mode "file" a SQLAlchemy async engine on ``path``; ``DatabaseError`` otherwise."""
        return self.content.engine

    def read_only(self) -> ReadOnlyDatabase:
        """The view of ``def`` rewards."""
        return ReadOnlyDatabase(self.content)

    def read_only_async(self) -> ReadOnlyAsyncDatabase:
        """The view of ``async def`` rewards."""
        return ReadOnlyAsyncDatabase(self.content)

    def tool_call(self) -> ToolCall:
        """``async with db.tool_call() as call:`` is the transaction of one tool call."""
        return ToolCall(self._connection, self._call)

    def of_call(self, call: ToolCall) -> Database:
        """The same database for the tool of this call: what its threads do belongs to the call, too."""
        return Database(self.content, writable=self._refusal is None, call=call.scope)

    async def break_off(self) -> None:
        """Undo a tool call or transaction that is still under way, and let nobody go on in it.

        For calls that do not heed their end.
        """
        await break_off(self._connection)

    def save(self, path: StrPath, keep: Keep = "full") -> Path:
        """Write the committed state to ``path``, complete or as a delta; returns the path written.

        A database in mode "file" has no delta: the complete file is written beside ``path`` as ``.db``.
        ``StorageError`` if it cannot be written (a former file stays), ``DatabaseError`` inside a
        transaction.
        """
        return self.content.save(Path(path), keep)

    def image(self, keep: Keep = "full") -> Sequence[bytes | memoryview] | None:
        """The bytes, part by part, that ``save`` would write; None where they are not in memory.

        They stay as they are when the database is closed.  Errors as for ``save``.
        """
        return self.content.image(keep)

    def export(self, path: StrPath) -> Path:
        """Write a complete SQLite file; see ``save``."""
        return self.content.save(Path(path), "full")

    def close(self) -> None:
        """Stop what is running and let go of everything; an open transaction is lost.

        A second time does nothing.  ``DatabaseError`` in a tool call on it, whose rollout goes on.
        """
        scope = enclosing_scope(self._connection)
        if scope is not None and scope.root.recorded:
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


def _no_engine_for_rewards() -> DatabaseError:
    return DatabaseError(
        "a reward's database has no engine", remedy="Ask `db.execute(...)` with the SQL as text."
    )


def _open_state(path: Path, mode: Mode) -> State:
    if mode == "overlay":
        try:
            from reward_kit.agent.database.overlay_state import OverlayState
        except ModuleNotFoundError as error:
            if error.name != "apsw":
                raise
        else:
            return OverlayState.open(path)
    elif mode != "file":
        raise DatabaseError(f'the mode is "overlay" or "file", not {mode!r}')
    from reward_kit.agent.database.file_state import FileState

    return FileState.open(path)
