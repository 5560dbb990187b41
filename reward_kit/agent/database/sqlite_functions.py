"""Random numbers and a clock of one's own for a connection of ``sqlite3``, whose VFS cannot be replaced."""

from __future__ import annotations

import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from reward_kit.agent.database.determinism import Randomness

_DATE_FUNCTIONS = ("date", "time", "datetime", "julianday", "unixepoch")
_KEYWORDS = {"current_date": "date", "current_time": "time", "current_timestamp": "datetime"}


class FunctionTarget(Protocol):
    """A connection of ``sqlite3``, or SQLAlchemy's adapter of one."""

    def create_function(
        self, name: str, narg: int, func: Callable[..., Any], *, deterministic: bool = ...
    ) -> object:
        """As in ``sqlite3.Connection``."""


def install_functions(target: FunctionTarget, randomness: Randomness | None, now: datetime | None) -> None:
    """Let random numbers come from ``randomness`` and the clock stand still at ``now``, if given."""
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
        from datetime import timezone

        self._now = now.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
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
