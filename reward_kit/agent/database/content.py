"""What all views of one database share: where its content lives, and the connection to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from reward_kit.agent.database.connection import Connection
from reward_kit.agent.database.table_diff import diff_databases
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime
    from pathlib import Path

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from reward_kit.agent.database.changes import Changes
    from reward_kit.agent.database.connection import Driver
    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.guards import Limits
    from reward_kit.errors import StorageError

Mode = Literal["overlay", "file"]
Keep = Literal["full", "delta"]
_Result = TypeVar("_Result")


class State(Protocol):
    """The content of a database in one of the two modes."""

    mode: Mode
    randomness: Randomness | None

    @property
    def path(self) -> Path | None:
        """The file that is this database alone, if there is one."""

    @property
    def engine(self) -> AsyncEngine:
        """A SQLAlchemy engine on that file; ``DatabaseError`` if there is none."""

    @property
    def sync_engine(self) -> Engine:
        """The same for code that does not await."""

    @property
    def base_path(self) -> Path:
        """The file of the base."""

    @property
    def base_size(self) -> int:
        """Bytes of the base."""

    @property
    def known_changes(self) -> Changes | None:
        """Those that it held when it was made, where they are known and nobody else writes to it."""

    @property
    def lost(self) -> StorageError | None:
        """Why it does not hold what was written to it."""

    def note_fault(self, error: BaseException) -> None:
        """Remember ``error`` if it says that what was written is lost."""

    def open_driver(self, limits: Limits) -> Driver:
        """Connect."""

    def fork(self, seed: int | None, now: datetime | None, earlier: Changes | None) -> State:
        """A private copy of the committed state; ``earlier`` are its changes, if they are known."""

    def reader(self, earlier: Changes | None) -> State:
        """The same for others to read, which must not be closed before them; ``earlier`` as for ``fork``."""

    def save(self, path: Path, keep: Keep) -> Path:
        """Write the committed state; returns the path written."""

    def image(self, keep: Keep) -> Sequence[bytes | memoryview] | None:
        """What ``save`` would write; None where it is not in memory."""

    def close(self) -> None:
        """Give back what is held."""


class Content:
    """``original`` is a base that this complete file was once a fork of."""

    def __init__(self, state: State, limits: Limits, original: Content | None = None) -> None:
        self.state = state
        self.limits = limits
        self.original = original
        self.connection = Connection(
            lambda: state.open_driver(limits), limits, state.randomness, eager=state.mode == "file"
        )

    @property
    def path(self) -> Path | None:
        """The file that this is alone, for others to open."""
        return self.connection.while_open(lambda: self.state.path)

    @property
    def engine(self) -> AsyncEngine:
        """A SQLAlchemy engine on that file."""
        return self.connection.while_open(lambda: self.state.engine)

    @property
    def sync_engine(self) -> Engine:
        """The same for code that does not await."""
        return self.connection.while_open(lambda: self.state.sync_engine)

    def changes(self, since: Changes | None = None) -> Changes:
        """The rows that differ from the base, or from the state whose changes ``since`` are."""
        changes = difference(self.original, self) if self.original is not None else self._of_state()
        return changes if since is None else changes.minus(since)

    def equals(self, other: Content, ignore: Collection[str] = ()) -> bool:
        """Whether both hold the same rows, but for ``ignore``."""
        if self.original is other.original and same_file(self.state.base_path, other.state.base_path):
            return self.changes().equals(other.changes(), ignore)
        return not difference(other, self).ignoring(ignore)

    def fork(self, seed: int | None, now: datetime | None) -> Content:
        """A private copy of the committed state."""
        state = self._settled(lambda driver: self.state.fork(seed, now, self._known_changes(driver)))
        return self._akin(state)

    def reader(self) -> Content:
        """The committed state of something that nobody writes to any more, over a connection of its own.

        It has to be closed before what it is of.
        """
        state = self._settled(lambda driver: self.state.reader(self._known_changes(driver)))
        return self._akin(state)

    def save(self, path: Path, keep: Keep) -> Path:
        """Write the committed state."""
        return self._settled(lambda _: self.state.save(path, keep))

    def image(self, keep: Keep) -> Sequence[bytes | memoryview] | None:
        """What ``save`` would write; None where it is not in memory."""
        return self._settled(lambda _: self.state.image(keep))

    def close(self) -> None:
        """Close everything; a second time does nothing."""
        if self.connection.closed:
            return
        self.connection.close()
        self.state.close()
        if self.original is not None:
            self.original.close()

    def _akin(self, state: State) -> Content:
        """The content of a copy, whose changes count from where these do."""
        # the original is a base, which may be read over more connections than one
        original = None if self.original is None else Content(self.original.state, self.limits)
        return Content(state, self.limits, original)

    def _of_state(self) -> Changes:
        known = self._known_changes(None)
        return self.connection.changes() if known is None else known

    def _known_changes(self, driver: Driver | None) -> Changes | None:
        """The changes against the base of the state; without a ``driver`` known until something is run."""
        if driver is not None:
            return self.connection.current_changes(driver)
        untouched = not self.connection.is_open and not self.connection.closed
        return self.state.known_changes if untouched else None

    def _settled(self, work: Callable[[Driver | None], _Result]) -> _Result:
        """The result of ``work``, done while no statement and no transaction is on its way."""

        def work_outside_transactions(driver: Driver) -> _Result:
            if driver.in_transaction:
                raise DatabaseError("a transaction is open", remedy="Do this after the tool call.")
            return work(driver)

        if not self.connection.is_open:
            return work(None)
        return self.connection.with_driver(work_outside_transactions)


def same_file(path: Path, other: Path) -> bool:
    """Whether two paths lead to one file, for example because it is hard-linked."""
    return path == other or (path.exists() and other.exists() and path.samefile(other))


def difference(before: Content, after: Content) -> Changes:
    """The changes that lead from one database to another, whatever bases they have."""
    return before.connection.with_driver(
        lambda old: after.connection.with_driver(lambda new: diff_databases(old.query, new.query))
    )
