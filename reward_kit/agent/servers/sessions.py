"""The databases behind a tool server: one seeded base, and a fork of it for each session."""

from __future__ import annotations

import contextlib
import shutil
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.files import temporary_folder
from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.bundles.files import BundleFiles
from reward_kit.agent.bundles.seed import Seed, folder_seed, seed_source
from reward_kit.agent.bundles.setup import with_setup
from reward_kit.agent.rows.dataset import read_dataset
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Database
    from reward_kit.agent.tools.execution import ToolResult
    from reward_kit.agent.tools.registry import ToolRegistry

MAX_SESSIONS = 256
"""Sessions that a server holds at once."""
DEFAULT = "default"
"""The session of calls that name none."""


class TooManySessionsError(RewardKitError):
    """No session can make room for a new one."""


class NoSuchRowError(RewardKitError):
    """The bundle has no row of this id."""


@dataclass(slots=True)
class _Session:
    """A fork. ``users`` counts the running calls; a ``retired`` session is closed after the last of them."""

    database: Database
    of_row: bool = False
    users: int = 0
    retired: bool = False

    def retire(self) -> None:
        self.retired = True
        if not self.users:
            self.database.close()

    @contextlib.contextmanager
    def used(self) -> Iterator[Database]:
        self.users += 1
        try:
            yield self.database
        finally:
            self.users -= 1
            if self.retired:
                self.retire()


class Sessions:
    """Sessions by id, at most ``limit`` of them.

    The least recently used session without changes makes room for a new one; ``default`` stays. Changes are
    never dropped: a new session is refused if all others hold some.

    Sessions begin with the data of ``task``, or without one with the seed of the bundle's folder. That base
    is seeded on ``open`` or first use, those of other rows when they are needed, into a temporary folder that
    ``close`` removes.
    """

    def __init__(self, registry: ToolRegistry, limit: int, task: Task | None = None) -> None:
        self._registry = registry
        self._limit = limit
        self._task = task
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._bases: dict[str, Database] = {}
        self._folder: Path | None = None

    def open(self) -> Database:
        """Return the base; raises ``BundleError`` if the bundle's seed is faulty."""
        if self._bases:
            return next(iter(self._bases.values()))
        if self._task is not None:
            return self._seeded(self._task.seed)
        folder = self._registry.folder
        return self._seeded(folder_seed(folder) if folder else Seed(""))

    def close(self) -> None:
        """Drop all sessions and bases."""
        for name in list(self._sessions):
            self.reset(name)
        while self._bases:
            self._bases.popitem()[1].close()
        if self._folder is not None:
            self._remove_folder()
            self._folder = None

    async def call(self, name: str, tool: str, arguments: dict[str, Any] | bytes) -> ToolResult:
        """Call a tool on the database of session ``name``, which is forked now if the session is new.

        Raises ``TooManySessionsError`` if there is no room for a new one.
        """
        session = self._sessions.get(name)
        if session is None:
            self._make_room()
            task = self._task
            clock, hidden = (None, None) if task is None else (task.row.clock(), task.hidden)
            session = self._sessions[name] = _Session(self.open().fork(now=clock, hidden=hidden))
        self._sessions.move_to_end(name)
        with session.used() as database:
            after = None if self._task is None else self._task.after_call
            return await self._registry.call(tool, arguments, db=database, after=after)

    def reset(self, name: str, row_id: str | None = None) -> None:
        """Return a session to the seed; a running call keeps its state, which is dropped afterwards.

        With ``row_id`` the session begins as rollouts of that row do: with its seed, at its ``now``. Raises
        ``NoSuchRowError`` if the bundle's ``task.jsonl`` has no such row, ``BundleError`` if it is faulty,
        and ``TooManySessionsError``; the session is then unchanged.
        """
        fresh = None if row_id is None else _Session(self._fork_for(row_id), of_row=True)
        if fresh and name not in self._sessions:
            self._make_room()
        if name in self._sessions:
            self._sessions.pop(name).retire()
        if fresh:
            self._sessions[name] = fresh

    async def changes(self, name: str) -> list[dict[str, Any]]:
        """Return the rows in which a session differs from the seed, once the running call is done."""
        session = self._sessions.get(name)
        if session is None:
            return []
        with session.used() as database:
            async with database.tool_call():
                await database.fetch_val("SELECT 1")  # waits for the running call without blocking the loop
                return database.changes().to_json()

    def _fork_for(self, row_id: str) -> Database:
        """Return the database in which rollouts of a row begin."""
        folder = self._registry.folder
        if folder is None or not (path := folder / "task.jsonl").is_file():
            raise NoSuchRowError("there is no task.jsonl beside the tools")
        files = BundleFiles(folder)
        rows = {row.id: row for row in read_dataset(path, files).rows}
        if row_id not in rows:
            raise NoSuchRowError(f"task.jsonl has no row {row_id!r}{did_you_mean(row_id, rows)}")
        row = rows[row_id]
        self.open()  # the bundle's own base stays the first
        seed = seed_source(row, files, folder).at(row.now)
        return self._seeded(with_setup(seed, row, folder)).fork(now=row.clock())

    def _seeded(self, seed: Seed) -> Database:
        """Return the base of a seed, the same one for equal seeds."""
        if seed.key not in self._bases:
            if self._folder is None:
                self._folder = temporary_folder("tools")
                # Also at exit: an application mounted inside another one gets no shutdown event.
                self._remove_folder = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
            path = self._folder / f"{len(self._bases)}.db"
            self._bases[seed.key] = seed.base(path, self._registry.database)
        return self._bases[seed.key]

    def _make_room(self) -> None:
        if len(self._sessions) < self._limit:
            return
        for name, session in self._sessions.items():
            if name != DEFAULT and not (session.of_row or session.users or session.database.changes()):
                self.reset(name)
                return
        raise TooManySessionsError(
            f"{len(self._sessions)} sessions are open and hold changes",
            remedy="Reset or delete one that is no longer needed (DELETE /sessions/ID).",
        )
