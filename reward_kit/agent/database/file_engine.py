"""``db.engine``: SQLAlchemy over ``aiosqlite`` on the private file of a fork."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, event
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from reward_kit.agent.database.base_image import seeded_with_foreign_keys
from reward_kit.agent.database.file_driver import LOCK_SECONDS
from reward_kit.agent.database.sqlite_functions import install_functions

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from reward_kit.agent.database.determinism import Randomness


def make_engine(
    file: Path,
    base: Path,
    randomness: Randomness | None,
    now: datetime | None,
    *,
    note_fault: Callable[[BaseException], None],
) -> AsyncEngine:
    """An engine whose connections have the settings, the random numbers and the clock of the fork.

    ``note_fault`` is told what its statements raise.
    No connection stays open between two uses: an idle one would keep a thread, and perhaps a lock.
    """
    url = URL.create("sqlite+aiosqlite", database=str(file))
    engine = create_async_engine(url, poolclass=NullPool, connect_args={"timeout": LOCK_SECONDS})
    foreign_keys = "ON" if seeded_with_foreign_keys(base) else "OFF"

    @event.listens_for(engine.sync_engine, "connect")
    def prepare(connection: Any, _record: object) -> None:
        install_functions(connection, randomness, now)
        cursor = connection.cursor()
        for pragma in ("synchronous=OFF", f"foreign_keys={foreign_keys}"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @event.listens_for(engine.sync_engine, "handle_error")
    def note(context: Any) -> None:
        note_fault(context.original_exception)

    return engine


def dispose_engine(engine: AsyncEngine) -> None:
    """Give up the engine; its pool holds no connections that would have to be closed."""
    engine.sync_engine.dispose(close=False)
