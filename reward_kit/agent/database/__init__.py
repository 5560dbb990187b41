"""The database of a task: seeded once, forked per rollout, written to by tools, read by rewards.

Each name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.lazy_names import lazy_names

if TYPE_CHECKING:
    from reward_kit.agent.database.changes import Changes as Changes
    from reward_kit.agent.database.changes import RowChange as RowChange
    from reward_kit.agent.database.database import Database as Database
    from reward_kit.agent.database.database import ReadOnlyAsyncDatabase as ReadOnlyAsyncDatabase
    from reward_kit.agent.database.database import ReadOnlyDatabase as ReadOnlyDatabase
    from reward_kit.agent.database.statement import Limits as Limits
    from reward_kit.agent.database.statement import Row as Row

__getattr__, __dir__, __all__ = lazy_names(__name__)
