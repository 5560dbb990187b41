"""The content of a database in one of the two modes, and the SQLite connection to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime
    from pathlib import Path

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from reward_kit.agent.database.changes import Changes
    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.database.guards import Guard, Limits
    from reward_kit.agent.database.statement import Answer, Statement
    from reward_kit.errors import StorageError

Mode = Literal["overlay", "file"]


class Backend(Protocol):
    """``is_shared``: others may write to the content as well.  ``begin_sql`` begins a transaction.

    ``lost`` is the error to raise for content that the disk did not keep.  Between ``connect`` and
    ``disconnect`` the caller sees to it that only one thread uses it at a time.
    """

    mode: Mode
    begin_sql: str
    is_shared: bool
    randomness: Randomness | None
    guard: Guard
    lost: StorageError | None

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
    def is_connected(self) -> bool:
        """True between ``connect`` and ``disconnect``."""

    @property
    def can_reconnect(self) -> bool:
        """True if nothing would be lost by disconnecting now."""

    @property
    def in_transaction(self) -> bool:
        """True while a transaction is open."""

    def connect(self, limits: Limits) -> None:
        """Open a SQLite connection."""

    def disconnect(self) -> None:
        """Close the SQLite connection; an open transaction is lost."""

    def run(self, statement: Statement) -> Answer:
        """Run a statement and fetch its rows.

        ``DatabaseError`` with SQLite's message; ``NotNowError`` if it holds up the event loop.
        """

    def control(self, sql: str) -> None:
        """Run a statement of this package's own (BEGIN, COMMIT ...)."""

    def query(self, sql: str) -> Iterable[Sequence[Any]]:
        """The rows of a query of this package's own."""

    def interrupt(self) -> None:
        """Stop the running statement; may be called from any thread."""

    def changes(self) -> Changes:
        """The rows that differ from the base, those of an open transaction included."""

    def known_changes(self) -> Changes | None:
        """``changes`` while it is not connected; None if a connection is needed for them."""

    def mark(self, *, recorded: bool) -> Any:
        """The present content, for ``restore`` and, if it is ``recorded``, for ``since``."""

    def since(self, mark: Any) -> Changes:
        """The rows changed since ``mark``."""

    def restore(self, mark: Any) -> None:
        """SQLite has taken back what was written since ``mark``."""

    def note_fault(self, error: BaseException) -> None:
        """Set ``lost`` if ``error`` tells that written content was lost."""

    def fork(self, seed: int | None, now: datetime | None) -> Backend:
        """A private copy of the committed state, with its own random numbers and clock if they are given."""

    def reader(self) -> Backend:
        """The committed state for reading only; to be closed before this one."""

    def export(self, path: Path) -> Path:
        """Write the committed state as a complete SQLite file; returns the path."""

    def delta(self) -> bytes:
        """The bytes that lead from the base to the committed state."""

    def close(self) -> None:
        """Give back what is held."""
