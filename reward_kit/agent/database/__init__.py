"""The database of a task: seeded once, forked per rollout, written to by tools, read by rewards.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.lazy_names import lazy_names

if TYPE_CHECKING:
    from reward_kit.agent.database.changes import Changes, RowChange
    from reward_kit.agent.database.database import Database, ReadOnlyAsyncDatabase, ReadOnlyDatabase
    from reward_kit.agent.database.statement import Limits, Row

__all__ = [
    "Changes",
    "Database",
    "Limits",
    "ReadOnlyAsyncDatabase",
    "ReadOnlyDatabase",
    "Row",
    "RowChange",
]

__getattr__, __dir__, _ = lazy_names(
    __name__,
    {
        f"{__name__}.changes": ["Changes", "RowChange"],
        f"{__name__}.database": ["Database", "ReadOnlyAsyncDatabase", "ReadOnlyDatabase"],
        f"{__name__}.statement": ["Limits", "Row"],
    },
)
