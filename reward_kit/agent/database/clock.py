"""The clock that SQLite sees: real, or frozen for as long as a statement runs.

SQLite asks the VFS of a connection for the time (``date('now')``, ``unixepoch()``, ``CURRENT_TIMESTAMP`` in a
query or as a column default).  Both VFSs of this package answer from here.  The VFS does not learn which
connection asks, but SQLite asks in the thread that runs the statement: so the frozen time is kept per thread
and set around each statement.
"""

from __future__ import annotations

import contextlib
import threading
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_MILLISECONDS_PER_DAY = 86_400_000
_UNIX_EPOCH = 210_866_760_000_000
"""1970-01-01T00:00Z in milliseconds since Julian day 0."""


class _Frozen(threading.local):
    milliseconds: int | None = None


_frozen = _Frozen()


def set_clock(julian_day: float | None) -> None:
    """Freeze SQLite's clock in this thread at ``julian_day``; ``None`` lets it run again."""
    _frozen.milliseconds = None if julian_day is None else round(julian_day * _MILLISECONDS_PER_DAY)


@contextlib.contextmanager
def frozen_clock(julian_day: float | None) -> Iterator[None]:
    """``set_clock`` for the length of a block."""
    before = _frozen.milliseconds
    set_clock(julian_day)
    try:
        yield
    finally:
        _frozen.milliseconds = before


def julian_day(moment: datetime) -> float:
    """Julian day of ``moment``, which is taken as UTC if it names no time zone."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    return (moment.timestamp() * 1000 + _UNIX_EPOCH) / _MILLISECONDS_PER_DAY


def sqlite_milliseconds() -> int:
    """What SQLite is to take for the current time: milliseconds since Julian day 0."""
    if _frozen.milliseconds is not None:
        return _frozen.milliseconds
    return int(time.time() * 1000) + _UNIX_EPOCH


class ClockMethods:
    """The clock methods of a VFS; mixed into ``apsw.VFS`` subclasses."""

    def xCurrentTime(self) -> float:
        """Julian day, with its fraction."""
        return sqlite_milliseconds() / _MILLISECONDS_PER_DAY

    def xCurrentTimeInt64(self) -> int:
        """Milliseconds since Julian day 0."""
        return sqlite_milliseconds()
