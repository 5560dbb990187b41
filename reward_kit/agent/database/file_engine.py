"""``db.engine``: SQLAlchemy on the private file of a fork, with ``await`` or, for ``def`` tools, without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import URL, Engine, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from reward_kit.agent.database.base_image import seeded_with_foreign_keys
from reward_kit.agent.database.file_driver import LOCK_SECONDS, LOCKED
from reward_kit.agent.database.sqlite_functions import install_functions

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from reward_kit.agent.database.determinism import Randomness

_REASON = (
    f"{LOCKED}: another connection is in a transaction, that of `db` if this call has written through it. "
    "In one call, write either through `db` or through the engine, and end each session."
)


class EngineFactory:
    """Makes engines whose connections have the settings, the random numbers and the clock of a fork.

    ``note_fault`` is told what their statements raise.
    No connection stays open between two uses: an idle one would keep a thread, and perhaps a lock.
    """

    def __init__(
        self,
        file: Path,
        base: Path,
        randomness: Randomness | None,
        now: datetime | None,
        *,
        note_fault: Callable[[BaseException], None],
    ) -> None:
        self._file = file
        self._base = base
        self._randomness = randomness
        self._now = now
        self._note_fault = note_fault

    def asynchronous(self) -> AsyncEngine:
        """An engine for ``async def`` tools."""
        url = URL.create("sqlite+aiosqlite", database=str(self._file))
        engine = create_async_engine(url, poolclass=NullPool, connect_args={"timeout": LOCK_SECONDS})
        self._prepare(engine.sync_engine)
        return engine

    def blocking(self) -> Engine:
        """An engine for ``def`` tools, in whichever thread they run."""
        url = URL.create("sqlite", database=str(self._file))
        # what a tool leaves open may be collected in another thread
        options = {"timeout": LOCK_SECONDS, "check_same_thread": False}
        engine = create_engine(url, poolclass=NullPool, connect_args=options)
        self._prepare(engine)
        return engine

    def _prepare(self, engine: Engine) -> None:
        foreign_keys = "ON" if seeded_with_foreign_keys(self._base) else "OFF"

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _record: object) -> None:
            install_functions(connection, self._randomness, self._now)
            cursor = connection.cursor()
            for pragma in ("synchronous=OFF", f"foreign_keys={foreign_keys}"):
                cursor.execute(f"PRAGMA {pragma}")
            cursor.close()

        @event.listens_for(engine, "handle_error", retval=True)
        def note(context: Any) -> Exception | None:
            raised = context.original_exception
            self._note_fault(raised)
            if not isinstance(context.sqlalchemy_exception, OperationalError) or str(raised) != LOCKED:
                return None
            raised.args = (_REASON,)
            return OperationalError(context.statement, context.parameters, raised)
