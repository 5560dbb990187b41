"""The database of a task: seeded once, forked per rollout, written to by tools, read by rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.database.changes import Changes, RowChange
from reward_kit.agent.database.database import Database, ReadOnlyAsyncDatabase, ReadOnlyDatabase
from reward_kit.agent.database.guards import Limits
from reward_kit.agent.database.row import Row

if TYPE_CHECKING:
    from reward_kit.agent.database.overlay import BaseImage, Overlay

__all__ = [
    "BaseImage",
    "Changes",
    "Database",
    "Limits",
    "Overlay",
    "ReadOnlyAsyncDatabase",
    "ReadOnlyDatabase",
    "Row",
    "RowChange",
]


def __getattr__(name: str) -> Any:
    if name in ("BaseImage", "Overlay"):  # they need apsw, which mode "file" does without
        from reward_kit.agent.database import overlay

        return getattr(overlay, name)
    raise AttributeError(name)
