"""``db.engine``: SQLAlchemy on the private file of a fork, with its random numbers and its clock."""

from __future__ import annotations

import sqlite3
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from pathlib import Path

    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from reward_kit.agent.database.determinism import Randomness

LOCK_SECONDS = 0.5
"""Time for another connection to end its transaction; the event loop waits with the statement.

Calls take turns, so whoever holds a lock is in the same call, and more patience would hardly help.
"""
LOCKED = "database is locked"
"""SQLite's message when that time is over."""

_REASON = (
    f"{LOCKED}: another connection is in a transaction, that of `db` if this call has written through it. "
    "In one call, write either through `db` or through the engine, and end each session."
)
_DATE_FUNCTIONS = ("date", "time", "datetime", "julianday", "unixepoch")
_KEYWORDS = {"current_date": "date", "current_time": "time", "current_timestamp": "datetime"}


class EngineFactory:
    """Makes engines whose connections have the settings, the random numbers and the clock of a fork.

    ``note_fault`` is called with the errors of their statements.
    No connection stays open between two uses: an idle one would keep a thread, and perhaps a lock.
    """

    def __init__(
        self,
        file: Path,
        randomness: Randomness | None,
        now: datetime | None,
        note_fault: Callable[[BaseException], None],
        *,
        foreign_keys: bool,
    ) -> None:
        self._file = file
        self._randomness = randomness
        self._now = now
        self._note_fault = note_fault
        self._foreign_keys = "ON" if foreign_keys else "OFF"

    def asynchronous(self) -> AsyncEngine:
        """An engine for ``async def`` tools."""
        from sqlalchemy import URL
        from sqlalchemy.ext.asyncio import create_async_engine
        from sqlalchemy.pool import NullPool

        url = URL.create("sqlite+aiosqlite", database=str(self._file))
        engine = create_async_engine(url, poolclass=NullPool, connect_args={"timeout": LOCK_SECONDS})
        self._prepare(engine.sync_engine)
        return engine

    def blocking(self) -> Engine:
        """An engine for ``def`` tools, in whichever thread they run."""
        from sqlalchemy import URL, create_engine
        from sqlalchemy.pool import NullPool

        url = URL.create("sqlite", database=str(self._file))
        # what a tool leaves open may be collected in another thread
        options = {"timeout": LOCK_SECONDS, "check_same_thread": False}
        engine = create_engine(url, poolclass=NullPool, connect_args=options)
        self._prepare(engine)
        return engine

    def _prepare(self, engine: Engine) -> None:
        from sqlalchemy import event
        from sqlalchemy.exc import OperationalError

        @event.listens_for(engine, "connect")
        def prepare(connection: Any, _record: object) -> None:
            install_functions(connection, self._randomness, self._now)
            cursor = connection.cursor()
            for pragma in ("synchronous=OFF", f"foreign_keys={self._foreign_keys}"):
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


class _FunctionTarget(Protocol):
    """A connection of ``sqlite3``, or SQLAlchemy's adapter of one."""

    def create_function(
        self, name: str, narg: int, func: Callable[..., Any], *, deterministic: bool = ...
    ) -> object:
        """As in ``sqlite3.Connection``."""


def install_functions(target: _FunctionTarget, randomness: Randomness | None, now: datetime | None) -> None:
    """Take random numbers from ``randomness`` and stop the clock at ``now``, if they are given.

    The clock of ``sqlite3`` is not that of a VFS of ours, so the functions that ask for it are replaced.
    """
    if randomness is not None:
        target.create_function("random", 0, randomness.integer)
        target.create_function("randomblob", 1, randomness.blob)
    if now is not None:
        clock = _Clock(now)
        # deterministic, because the originals may stand in indexes, CHECK and generated columns
        for name in _DATE_FUNCTIONS:
            target.create_function(name, -1, partial(clock.call, name, 0), deterministic=True)
        target.create_function("strftime", -1, partial(clock.call, "strftime", 1), deterministic=True)
        for keyword, function in _KEYWORDS.items():
            target.create_function(keyword, 0, partial(clock.call, function, 0), deterministic=True)


class _Clock:
    """SQLite's date functions, computed by SQLite, with "now" replaced by a fixed moment."""

    def __init__(self, now: datetime) -> None:
        self._now = now.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        # unrelated to any file, and used by one statement at a time, in whichever thread
        self._calculator = sqlite3.connect(":memory:", check_same_thread=False)

    def call(self, function: str, moment: int, *values: Any) -> Any:
        """``function(*values)``, where the time value at position ``moment`` may be left out."""
        if len(values) <= moment:
            values = (*values, self._now)
        elif isinstance(values[moment], str) and values[moment].lower() == "now":
            values = (*values[:moment], self._now, *values[moment + 1 :])
        places = ", ".join("?" * len(values))
        return self._calculator.execute(f"SELECT {function}({places})", values).fetchone()[0]
