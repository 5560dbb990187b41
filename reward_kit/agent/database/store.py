"""A database state as both modes keep it; the rest of the interface is that of ``OverlayStore``."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from reward_kit.agent.database.determinism import Randomness

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from reward_kit.agent.database.database import Mode
    from reward_kit.agent.database.statement import Limits
    from reward_kit.errors import StorageError


class BaseStore:
    """One state, used by one thread at a time.

    ``path`` is the complete SQLite file that is this state alone, in mode "file".  ``randomness`` is None if
    random numbers are real ones, ``now`` if the clock is.  ``is_shared``: others may write to it too, so a
    tool call takes its turn when it starts.  ``lost`` is the error to raise if the disk did not keep what was
    written.
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
