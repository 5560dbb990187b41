"""The databases behind a tool server: one seeded base, and a fork of it for each session."""

from __future__ import annotations

import contextlib
import shutil
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.seed import Seed, folder_seed
from reward_kit.agent.database import Database
from reward_kit.agent.temporary_folder import temporary_folder
from reward_kit.agent.tools.arguments import did_you_mean
from reward_kit.agent.tools.execution import result_of
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reward_kit.agent.bundles.task_row import TaskRow
    from reward_kit.agent.tool_registry import ToolRegistry
    from reward_kit.agent.tools.execution import ToolResult

DEFAULT = "default"
"""The session of calls that name none."""


@dataclass(slots=True)
class _Session:
    """A fork, how many calls are using it now, and whether it is to be closed after the last of them."""

    database: Database
    users: int = 0
    retired: bool = False
    pristine: bool | None = None
    """Whether it is known to be as seeded; None after each use."""
    of_row: bool = False
    """Whether it was begun for a row, which would be forgotten with it."""


class TooManySessionsError(RewardKitError):
    """No session can make room for a new one."""


class NoSuchRowError(RewardKitError):
    """The bundle has no row of this id."""


class Sessions:
    """Sessions by id, at most ``limit`` of them.

    Room for a new one is made by the session that was unused for longest among those that are as seeded;
    ``default`` stays.  Nothing that a call has written is ever dropped.

    The base is seeded from the bundle's folder on ``open`` (or first use), those of rows when they are asked
    for, into a temporary folder, which ``close`` removes.
    """

    def __init__(self, registry: ToolRegistry, limit: int) -> None:
        self._registry = registry
        self._limit = limit
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._base: Database | None = None
        self._bases: dict[str, Database] = {}
        self._folder: Path | None = None

    def open(self) -> Database:
        """The base; raises ``BundleError`` where the bundle's seed is faulty."""
        if self._base is None:
            self._base = self._seeded(
                folder_seed(self._registry.folder) if self._registry.folder else Seed("")
            )
        return self._base

    def _seeded(self, seed: Seed) -> Database:
        """The base of a seed; the same one for equal seeds."""
        if seed.key not in self._bases:
            if self._folder is None:
                self._folder = temporary_folder("tools")
                # Also when the interpreter ends: an application inside another is not told of the shutdown.
                self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            try:
                self._bases[seed.key] = Database.seed(
                    self._folder / f"base{len(self._bases) or ''}.db",
                    seed.sql,
                    script=seed.script,
                    origin=seed.origin,
                    now=seed.now,
                    mode=self._registry.database,
                )
            except RewardKitError:
                self._forget_folder()
                raise
        return self._bases[seed.key]

    def _forget_folder(self) -> None:
        """Remove the folder, once there is no base in it."""
        if not self._bases and self._folder is not None:
            self._remove_folder()
            self._folder = None

    def close(self) -> None:
        """Forget all sessions and remove the base."""
        for name in list(self._sessions):
            self.reset(name)
        self._base = None
        while self._bases:
            self._bases.popitem()[1].close()
        self._forget_folder()

    @contextlib.contextmanager
    def use(self, name: str) -> Iterator[Database]:
        """The database of a session for one call, forked now if the session is new.

        Raises ``TooManySessionsError`` where there is no room for a new one.
        """
        session = self._sessions.get(name)
        if session is None:
            self._make_room()
            session = self._sessions[name] = _Session(self.open().fork())
        self._sessions.move_to_end(name)
        session.users += 1
        try:
            yield session.database
        finally:
            session.users -= 1
            session.pristine = None
            self._close_if_done(session)

    async def call(self, name: str, tool: str, arguments: dict[str, Any] | bytes) -> ToolResult:
        """What came of a tool call on the database of session ``name``, whatever the tool raised.

        Raises ``TooManySessionsError`` as ``use``.
        """
        with self.use(name) as database:
            return await result_of(self._registry.call(tool, arguments, db=database))

    def reset(self, name: str, row_id: str | None = None) -> None:
        """Back to the seed; a call that is running keeps the state it began with, which then is dropped.

        With ``row_id`` the session begins as rollouts of that row do: with its seed, at its ``now``. Raises
        ``NoSuchRowError`` where the bundle's ``task.jsonl`` has no such row, ``BundleError`` where it is
        faulty, ``TooManySessionsError`` as ``use``; the session then is as it was.
        """
        fresh = None
        if row_id is not None:
            row, base = self._base_of_row(row_id)
            if name not in self._sessions:
                self._make_room()
            fresh = _Session(base.fork(now=row.clock()), of_row=True)
        session = self._sessions.pop(name, None)
        if session is not None:
            session.retired = True
            self._close_if_done(session)
        if fresh is not None:
            self._sessions[name] = fresh

    def _base_of_row(self, row_id: str) -> tuple[TaskRow, Database]:
        from reward_kit.agent.bundles.dataset import read_dataset  # not for those who never ask for one
        from reward_kit.agent.bundles.files import BundleFiles
        from reward_kit.agent.bundles.row_seed import seed_source

        folder = self._registry.folder
        path = folder / "task.jsonl" if folder else None
        if folder is None or path is None or not path.is_file():
            raise NoSuchRowError("there is no task.jsonl beside the tools")
        files = BundleFiles(folder)
        rows = {row.id: row for row in read_dataset(path, files).rows}
        row = rows.get(row_id)
        if row is None:
            raise NoSuchRowError(f"task.jsonl has no row {row_id!r}{did_you_mean(row_id, list(rows))}")
        return row, self._seeded(seed_source(row, files, folder).at(row.now))

    async def changes(self, name: str) -> list[dict[str, Any]]:
        """The rows in which a session differs from the seed, once the call that is running is done."""
        if name not in self._sessions:
            return []
        with self.use(name) as database:
            async with database.tool_call():
                await database.fetch_val(
                    "SELECT 1"
                )  # takes the turn; changes() could only block the event loop for it
                return database.changes().to_json()

    def _make_room(self) -> None:
        if len(self._sessions) < self._limit:
            return
        for name, session in self._sessions.items():
            if name != DEFAULT and not session.of_row and not session.users and _is_pristine(session):
                self.reset(name)
                return
        raise TooManySessionsError(
            f"{len(self._sessions)} sessions are open and hold changes",
            remedy="Reset or delete one that is not needed any more (DELETE /sessions/ID).",
        )

    def _close_if_done(self, session: _Session) -> None:
        if session.retired and not session.users:
            session.database.close()


def _is_pristine(session: _Session) -> bool:
    """Whether a session that nobody is using has no changes."""
    if session.pristine is None:
        session.pristine = not session.database.changes()
    return session.pristine
