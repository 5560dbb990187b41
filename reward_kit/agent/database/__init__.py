"""The database of a task: seeded once, forked per rollout, written to by tools, read by rewards."""

from __future__ import annotations

from reward_kit.agent.database.changes import Changes, RowChange
from reward_kit.agent.database.database import Database, ReadOnlyAsyncDatabase, ReadOnlyDatabase
from reward_kit.agent.database.guards import Limits
from reward_kit.agent.database.row import Row

__all__ = [
    "Changes",
    "Database",
    "Limits",
    "ReadOnlyAsyncDatabase",
    "ReadOnlyDatabase",
    "Row",
    "RowChange",
]
