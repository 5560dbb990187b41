"""The databases behind a tool server: one seeded base, and a fork of it for each session."""

from __future__ import annotations

import contextlib
import logging
import shutil
import tempfile
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.seed import Seed, folder_seed
from reward_kit.agent.database import Database
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.tool_registry import ToolRegistry

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Session:
    """A fork, how many calls are using it now, and whether it is to be closed after the last of them."""

    database: Database
    users: int = 0
    retired: bool = False


class Sessions:
    """Sessions by id, at most ``limit`` of them: the one that was unused for longest makes room for a new
    one.

    The base is seeded from the bundle's folder on ``open`` (or first use) into a temporary folder, which
    ``close`` removes.
    """

    def __init__(self, registry: ToolRegistry, limit: int) -> None:
        self._registry = registry
        self._limit = limit
        self._sessions: OrderedDict[str, _Session] = OrderedDict()
        self._base: Database | None = None

    def open(self) -> Database:
        """The base; raises ``BundleError`` where the bundle's seed is faulty."""
        if self._base is None:
            seed = folder_seed(self._registry.folder) if self._registry.folder else Seed("")
            folder = tempfile.mkdtemp(prefix="reward-kit-tools-")
            # Also when the interpreter ends: an application mounted in another is not told of the shutdown.
            self._remove_folder = weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
            try:
                self._base = Database.seed(
                    Path(folder) / "base.db",
                    seed.sql,
                    script=seed.script,
                    origin=seed.origin,
                    now=seed.now,
                    mode=self._registry.database,
                )
            except RewardKitError:
                self._remove_folder()
                raise
        return self._base

    def close(self) -> None:
        """Forget all sessions and remove the base."""
        for name in list(self._sessions):
            self.reset(name)
        if self._base is not None:
            self._base.close()
            self._base = None
            self._remove_folder()

    @contextlib.contextmanager
    def use(self, name: str) -> Iterator[Database]:
        """The database of a session for one call, forked now if the session is new."""
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session(self.open().fork())
        self._sessions.move_to_end(name)
        session.users += 1
        try:
            self._make_room()
            yield session.database
        finally:
            session.users -= 1
            self._close_if_done(session)

    def reset(self, name: str) -> None:
        """Back to the seed; a call that is running keeps the state it began with, which then is dropped."""
        session = self._sessions.pop(name, None)
        if session is not None:
            session.retired = True
            self._close_if_done(session)

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
        idle = [name for name, session in self._sessions.items() if not session.users]
        for name in idle[: max(0, len(self._sessions) - self._limit)]:
            logger.info("session %r is dropped: %d newer ones", name, self._limit)
            self.reset(name)

    def _close_if_done(self, session: _Session) -> None:
        if session.retired and not session.users:
            session.database.close()
