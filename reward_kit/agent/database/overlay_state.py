"""A database in mode "overlay": a base and the pages that differ from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.database.base_image import BaseImage
from reward_kit.agent.database.clock import julian_day
from reward_kit.agent.database.delta import delta_of, export, is_delta, load_delta, parts_of, save_delta
from reward_kit.agent.database.determinism import Randomness
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.overlay_driver import OverlayDriver
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from pathlib import Path

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from reward_kit.agent.database.changes import Changes
    from reward_kit.agent.database.content import Keep, Mode
    from reward_kit.agent.database.guards import Limits


class OverlayState:
    """``earlier`` are the changes that ``overlay`` holds already, ``None`` if they are not known."""

    mode: Mode = "overlay"
    path: Path | None = None
    lost: None = None

    def __init__(
        self, overlay: Overlay, randomness: Randomness | None = None, earlier: Changes | None = None
    ) -> None:
        self.overlay = overlay
        self.randomness = randomness
        self.known_changes = earlier

    @classmethod
    def open(cls, path: Path) -> OverlayState:
        """A base, a complete file or a delta."""
        return cls(load_delta(path) if is_delta(path) else Overlay(BaseImage.open(path)))

    @property
    def engine(self) -> AsyncEngine:
        """There is none: an engine needs a file."""
        raise _no_engine()

    @property
    def sync_engine(self) -> Engine:
        """There is none either."""
        raise _no_engine()

    @property
    def base_path(self) -> Path:
        """The file of the base."""
        return self.overlay.base.path

    @property
    def base_size(self) -> int:
        """Bytes of the base."""
        return self.overlay.base.size

    def note_fault(self, error: BaseException) -> None:
        """Nothing is written to a disk here."""

    def open_driver(self, limits: Limits) -> OverlayDriver:
        """What runs statements; it connects when the first one comes."""
        return OverlayDriver(self.overlay, limits, self.randomness, self.known_changes)

    def fork(self, seed: int | None, now: datetime | None, earlier: Changes | None) -> OverlayState:
        """A private copy of the committed state, with its own random numbers and clock if they are given."""
        overlay = self.overlay.fork()
        if now is not None:
            overlay.now = julian_day(now)
        randomness = self.randomness.copy() if self.randomness is not None else None
        return OverlayState(overlay, randomness if seed is None else Randomness(seed), earlier)

    def reader(self, earlier: Changes | None) -> OverlayState:
        """A copy, which costs next to nothing."""
        return self.fork(None, None, earlier)

    def save(self, path: Path, keep: Keep) -> Path:
        """Write the committed state, complete or as what differs from the base."""
        return export(self.overlay, path) if keep == "full" else save_delta(self.overlay, path)

    def image(self, keep: Keep) -> Sequence[bytes | memoryview] | None:
        """What ``save`` would write; None for a complete file whose base is not in memory."""
        return parts_of(self.overlay) if keep == "full" else (delta_of(self.overlay),)

    def close(self) -> None:
        """Nothing to clean up: the pages go with this object."""


def _no_engine() -> DatabaseError:
    return DatabaseError(
        "this database has no engine, because it is no file of its own",
        remedy='Write `ToolRegistry(..., database="file")` to have one.',
    )
