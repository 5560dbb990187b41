"""A database state as both modes keep it: content, random numbers, clock, and the guard of its statements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from reward_kit.agent.database.determinism import Randomness

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from reward_kit.agent.database.changes import Changes
    from reward_kit.agent.database.database import Mode
    from reward_kit.agent.database.statement import ExecuteResult, Limits, Statement
    from reward_kit.errors import StorageError


class Store(ABC):
    """One state, used by one thread at a time.

    ``path`` is the complete SQLite file that is this state alone, in mode "file".
    ``randomness`` is None if random numbers are real ones, ``now`` if the clock is.  ``is_shared``: others
    may write to it too, so a tool call takes its turn when it starts.  ``lost`` is the error to raise if the
    disk did not keep what was written.
    """

    mode: ClassVar[Mode]
    begin_sql: ClassVar[str]
    is_shared: ClassVar[bool]
    base_path: Path
    path: Path | None = None
    lost: StorageError | None = None

    def __init__(self, limits: Limits, randomness: Randomness | None, now: datetime | None) -> None:
        self.limits = limits
        self.randomness = randomness
        self.now = now

    @property
    def draws(self) -> int:
        """Random numbers drawn so far."""
        return 0 if self.randomness is None else self.randomness.position

    def set_draws(self, position: int) -> None:
        """Repeat the random numbers from ``position`` on."""
        if self.randomness is not None:
            self.randomness.position = position

    def randomness_of_copy(self, seed: int | None) -> Randomness | None:
        """The random numbers of a fork."""
        if seed is not None:
            return Randomness(seed)
        return None if self.randomness is None else self.randomness.copy()

    @property
    @abstractmethod
    def base_size(self) -> int:
        """Bytes of the base."""

    @property
    @abstractmethod
    def engine(self) -> Any:
        """A SQLAlchemy async engine on the file; ``DatabaseError`` if there is none."""

    @property
    @abstractmethod
    def sync_engine(self) -> Any:
        """The same for code that does not await."""

    @property
    @abstractmethod
    def in_transaction(self) -> bool:
        """True while a transaction is open."""

    @property
    @abstractmethod
    def was_stopped(self) -> bool:
        """True if the last statement was stopped."""

    @abstractmethod
    def run(self, statement: Statement) -> ExecuteResult:
        """Run a statement and fetch its rows.

        ``DatabaseError`` with SQLite's message; ``NotNowError`` if it holds up the event loop.
        """

    @abstractmethod
    def control(self, sql: str) -> None:
        """Run a statement of this package's own (BEGIN, COMMIT ...)."""

    @abstractmethod
    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows of a query of this package's own."""

    @abstractmethod
    def changes(self) -> Changes:
        """The rows that differ from the base, those of an open transaction included."""

    @abstractmethod
    def mark(self, *, recorded: bool) -> Any:
        """The present content, for ``restore`` and, if it is ``recorded``, for ``since``."""

    @abstractmethod
    def since(self, mark: Any) -> Changes:
        """The rows changed since ``mark``."""

    @abstractmethod
    def restore(self, mark: Any) -> None:
        """SQLite has taken back what was written since ``mark``."""

    @abstractmethod
    def note_fault(self, error: BaseException) -> None:
        """Set ``lost`` if the disk is the cause of ``error``."""

    @abstractmethod
    def fork(self, seed: int | None, now: datetime | None) -> Store:
        """A private copy of the committed state, with its own random numbers and clock if they are given."""

    @abstractmethod
    def reader(self) -> Store:
        """The committed state for reading only; to be closed before this one."""

    @abstractmethod
    def export(self, path: Path) -> None:
        """Write the committed state as a complete SQLite file."""

    @abstractmethod
    def delta(self) -> bytes:
        """The bytes that lead from the base to the committed state."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection; an open transaction is lost."""
