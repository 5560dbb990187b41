"""Random numbers and a clock that depend on a rollout's seed and row alone.

SQLite asks the VFS of a connection for the time (``date('now')``, ``unixepoch()``, ``CURRENT_TIMESTAMP`` in a
query or as a column default).  Both VFSs of this package answer with ``sqlite_milliseconds``.  The VFS does
not learn which connection asks, but SQLite asks in the thread that runs the statement: so the frozen time is
kept per thread and set around each statement.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterator

_LEADING_INTEGER = re.compile(r"\s*([+-]?\d+)")
_LARGEST_INTEGER = (1 << 63) - 1
_LARGEST_BLOB = 64 << 20
_MILLISECONDS_PER_DAY = 86_400_000
_UNIX_EPOCH = 210_866_760_000_000
"""1970-01-01T00:00Z in milliseconds since Julian day 0."""


class Randomness:
    """The random numbers of one rollout: the n-th draw is a function of ``seed`` and n.

    ``position`` is the number of draws so far.  Setting it back makes the draws that follow repeat: so a
    statement that is started again, or a tool call that is rolled back, leaves no trace in the numbers to
    come.
    """

    __slots__ = ("_key", "position", "seed")

    def __init__(self, seed: int, position: int = 0) -> None:
        self.seed = seed
        self.position = position
        self._key = hashlib.blake2b(str(seed).encode(), digest_size=32).digest()

    def copy(self) -> Randomness:
        """The same numbers from here on, drawn independently."""
        return Randomness(self.seed, self.position)

    def integer(self) -> int:
        """SQLite's ``random()``: any 64-bit signed integer."""
        self.position += 1
        draw = hashlib.blake2b(self.position.to_bytes(8, "big"), digest_size=8, key=self._key)
        return int.from_bytes(draw.digest(), "big", signed=True)

    def blob(self, length: object) -> bytes:
        """SQLite's ``randomblob(length)``: that many bytes, at least one; ``DatabaseError`` above 64 MiB."""
        size = max(1, _as_integer(length))
        if size > _LARGEST_BLOB:
            raise DatabaseError("string or blob too big")
        self.position += 1
        return hashlib.shake_128(self._key + self.position.to_bytes(8, "big")).digest(size)


def read_moment(now: str | datetime | None) -> datetime | None:
    """``now`` (ISO 8601 text or a datetime; UTC where it names no time zone) as an aware datetime."""
    if isinstance(now, str):
        text = now.strip()
        try:
            # Python 3.10 does not read the Z that every JSON writer puts at the end
            now = datetime.fromisoformat(text[:-1] + "+00:00" if text[-1:] in ("Z", "z") else text)
        except ValueError as error:
            raise DatabaseError(
                f"now={now!r} is not a date or time", remedy='Write it like "2025-05-19T09:00:00Z".'
            ) from error
    if isinstance(now, datetime) and now.tzinfo is None:
        return now.replace(tzinfo=UTC)
    return now


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
        moment = moment.replace(tzinfo=UTC)
    return (moment.timestamp() * 1000 + _UNIX_EPOCH) / _MILLISECONDS_PER_DAY


def sqlite_milliseconds() -> int:
    """The current time for SQLite: milliseconds since Julian day 0."""
    if _frozen.milliseconds is not None:
        return _frozen.milliseconds
    return int(time.time() * 1000) + _UNIX_EPOCH


def sqlite_days() -> float:
    """The current time for SQLite as a Julian day with its fraction."""
    return sqlite_milliseconds() / _MILLISECONDS_PER_DAY


def _as_integer(value: object) -> int:
    """``value`` as SQLite casts it to an integer."""
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if abs(value) < _LARGEST_INTEGER else _LARGEST_INTEGER
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    match = _LEADING_INTEGER.match(value) if isinstance(value, str) else None
    return int(match.group(1)) if match else 0
