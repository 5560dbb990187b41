"""Sessions of servers by id; those of a tool server are forks of one seeded base."""

from __future__ import annotations

import contextlib
import logging
import math
import time
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.bundles.files import BundleFiles
from reward_kit.agent.bundles.imports import BundleImports, load_user_registry
from reward_kit.agent.bundles.seed import Seed, folder_source, seed_source, with_setup
from reward_kit.agent.bundles.task import Bases, Task, no_answer
from reward_kit.agent.rows.dataset import read_dataset
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reward_kit.agent.database import Database
    from reward_kit.agent.tools.execution import Tool, ToolResult
    from reward_kit.agent.tools.registry import ToolRegistry

logger = logging.getLogger(__name__)

MAX_SESSIONS = 256
"""Sessions that a server holds at once."""
DEFAULT = "default"
"""The session of calls that name none."""


class TooManySessionsError(RewardKitError):
    """No session can make room for a new one."""


class NoSuchRowError(RewardKitError):
    """The bundle has no row of this id."""


class Closable(Protocol):
    """Something that a session holds; ``close`` frees it."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)


class Session(Generic[T]):
    """Something held open. ``users`` counts the running calls; the last one closes it if ``retired``."""

    __slots__ = ("after", "held", "retired", "used_at", "users")

    def __init__(self, held: T, after: Sequence[Tool] | None = None) -> None:
        self.held, self.after = held, after
        self.users, self.retired, self.used_at = 0, False, 0.0

    def retire(self) -> None:
        """Close it after the running calls."""
        self.retired = True
        if not self.users:
            self.held.close()

    @contextlib.contextmanager
    def used(self) -> Iterator[T]:
        """Keep it open during a call."""
        self.users += 1
        try:
            yield self.held
        finally:
            self.users -= 1
            if self.retired:
                self.retire()


class Pool(Generic[T]):
    """At most ``limit`` sessions by id, the least recently used first.

    The first for which ``is_spare`` is true makes room for a new one. One without a request for ``idle``
    seconds ends at the next request for any.
    """

    def __init__(
        self, limit: int, is_spare: Callable[[str, Session[T]], bool], idle: float = math.inf
    ) -> None:
        self._limit, self._is_spare, self._idle = limit, is_spare, idle
        self._sessions: OrderedDict[str, Session[T]] = OrderedDict()

    def get(self, name: str) -> Session[T] | None:
        """Return a session, which counts as used now."""
        self._end_idle()
        if (session := self._sessions.get(name)) is not None:
            session.used_at = time.monotonic()
            self._sessions.move_to_end(name)
        return session

    def put(self, name: str, held: T, after: Sequence[Tool] | None = None) -> Session[T]:
        """Begin a session, in place of one of that name; ``after`` is for what begins as a row.

        Raises ``TooManySessionsError``, and closes ``held``, if there is no room for it.
        """
        self._end_idle()
        if name in self._sessions:
            self.drop(name)
        elif len(self._sessions) >= self._limit:
            spare = next((one for one in self._sessions.items() if self._is_spare(*one)), None)
            if spare is None:
                held.close()
                fault = f"{len(self._sessions)} sessions are open and in use"
                remedy = "Reset or delete one that is no longer needed (DELETE /sessions/ID)."
                raise TooManySessionsError(fault, remedy=remedy)
            self.drop(spare[0])
        session = self._sessions[name] = Session(held, after)
        session.used_at = time.monotonic()
        return session

    def drop(self, name: str) -> None:
        """End a session, if there is one of that name; a running call keeps what it uses."""
        if name in self._sessions:
            self._sessions.pop(name).retire()

    def close(self) -> None:
        """End all sessions."""
        for name in list(self._sessions):
            self.drop(name)

    def _end_idle(self) -> None:
        now = time.monotonic()
        while self._sessions:
            name, session = next(iter(self._sessions.items()))
            if session.used_at >= now - self._idle:
                return
            if session.users:
                session.used_at = now
                self._sessions.move_to_end(name)
            else:
                self.drop(name)


class Sessions:
    """Sessions by id, at most ``limit`` of them.

    The least recently used session without changes makes room for a new one; ``default`` stays. Changes are
    never dropped: a new session is refused if all others hold some.

    Sessions begin with the data of ``task``, or without one with the seed of the bundle's folder. That base
    is seeded on ``open`` or first use, those of other rows when they are needed, into a temporary folder that
    ``close`` removes.
    """

    def __init__(self, registry: ToolRegistry, limit: int, task: Task | None = None) -> None:
        self._registry, self._task = registry, task
        self._pool: Pool[Database] = Pool(limit, _is_spare)
        self._base: Database | None = None
        self._bases: Bases | None = None
        self._imports: BundleImports | None = None

    def open(self) -> Database:
        """Return the base; raises ``BundleError`` if the bundle's seed is faulty."""
        if self._base is None:
            folder, task = self._registry.folder, self._task
            seed = task.seed if task else folder_source(folder).at() if folder else Seed("")
            self._base = self._seeded(seed)
        return self._base

    def close(self) -> None:
        """Drop all sessions and bases."""
        self._pool.close()
        imports, self._imports = self._imports, None
        if imports is not None:
            imports.close()
        if self._bases is not None:
            self._close_bases()
            self._base = self._bases = None

    async def call(self, name: str, tool: str, arguments: dict[str, Any] | bytes) -> ToolResult:
        """Call a tool on the database of session ``name``, which is forked now if the session is new.

        The log has the traceback of a tool that fails. Raises ``TooManySessionsError`` if there is no room
        for a new one.
        """
        task = self._task
        if (session := self._pool.get(name)) is None:
            clock, of = (None, self._registry) if task is None else (task.row.clock(), task)
            session = self._pool.put(name, self.open().fork(now=clock, hidden=of.hidden))
        with session.used() as database:
            after = session.after if task is None else task.after_call
            result = await self._registry.call(tool, arguments, db=database, after=after)
        if result.error:
            logger.warning("tool %r failed\n%s", tool, result.error)
        return result

    def reset(self, name: str, row_id: str | None = None) -> None:
        """Return a session to the seed; a running call keeps its state, which is dropped afterwards.

        With ``row_id`` the session begins as rollouts of that row do: with its seed, at its ``now``. Raises
        ``NoSuchRowError`` if the bundle's ``task.jsonl`` has no such row, ``BundleError`` if it is faulty,
        and ``TooManySessionsError``; the session is then unchanged.
        """
        if row_id is None:
            self._pool.drop(name)
        else:
            self._pool.put(name, *self._fork_for(row_id))

    async def changes(self, name: str) -> list[dict[str, Any]]:
        """Return the rows in which a session differs from the seed, once the running call is done."""
        if (session := self._pool.get(name)) is None:
            return []
        with session.used() as database:
            async with database.tool_call():
                await database.fetch_val("SELECT 1")  # waits for the running call without blocking the loop
                return database.changes().to_json()

    def _fork_for(self, row_id: str) -> tuple[Database, Sequence[Tool]]:
        """Return the database in which rollouts of a row begin, and what runs after each call."""
        folder = self._registry.folder
        if folder is None or not (path := folder / "task.jsonl").is_file():
            raise NoSuchRowError("there is no task.jsonl beside the tools")
        files = BundleFiles(folder)
        rows = {row.id: row for row in read_dataset(path, files).rows}
        if row_id not in rows:
            raise NoSuchRowError(f"task.jsonl has no row {row_id!r}{did_you_mean(row_id, rows)}")
        row = rows[row_id]
        self._imports = self._imports or BundleImports(folder)
        user = load_user_registry(self._imports, row.user_toolset, bool(row.toolset_outside))
        seed = with_setup(seed_source(row, files, folder).at(row.now), row, folder)
        task = Task(row, self._registry, no_answer, seed, folder, user_registry=user)
        return self._seeded(seed).fork(now=row.clock(), hidden=task.hidden), task.after_call

    def _seeded(self, seed: Seed) -> Database:
        """Return the base of a seed, the same one for equal seeds."""
        if self._bases is None:
            self._bases = Bases()
            # Also at exit: an application mounted inside another one gets no shutdown event.
            self._close_bases = weakref.finalize(self, self._bases.close)
        return self._bases.of(seed, self._registry.database)


def _is_spare(name: str, session: Session[Database]) -> bool:
    return name != DEFAULT and not (session.after is not None or session.users or session.held.changes())
