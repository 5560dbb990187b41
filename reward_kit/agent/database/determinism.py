"""Random numbers and a clock that depend on a rollout's seed and row alone."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
from datetime import UTC, datetime
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST_BLOB = 64 << 20
_DATE_FUNCTIONS = {"date": 0, "time": 0, "datetime": 0, "julianday": 0, "unixepoch": 0, "strftime": 1}
"""The positions of their time values, which mean "now" if they are left out."""
_KEYWORDS = {"current_date": "date", "current_time": "time", "current_timestamp": "datetime"}


class Randomness:
    """The random numbers of one rollout: the n-th draw is a function of ``seed`` and n.

    Without a seed they are real ones and not counted.  ``position`` is the number of draws so far.  Setting
    it back repeats the draws that follow: so a statement that is started again, or a tool call that is rolled
    back, leaves no trace in later numbers.  The draws up to ``since`` are those of ``earlier``.
    """

    __slots__ = ("earlier", "key", "position", "seed", "since")

    def __init__(
        self, seed: int | None, position: int = 0, earlier: Randomness | None = None, since: int = 0
    ) -> None:
        self.seed = seed
        self.position = position
        self.earlier, self.since = earlier, since
        self.key = _key_of(seed)

    def fork(self, seed: int | Randomness | None) -> Randomness:
        """Those of ``seed`` or, if it is None, the same numbers from here on, drawn independently.

        The numbers of another ``Randomness`` come from its first draw on.
        """
        if isinstance(seed, Randomness):
            return Randomness(seed.seed, 0, seed.earlier, seed.since)
        if seed is None:
            return Randomness(self.seed, self.position, self.earlier, self.since)
        earlier = None if self.position == 0 else self.fork(None)
        return Randomness(seed, self.position, earlier, self.position)

    def _next_key(self) -> bytes:
        """Count a draw; returns the key that it is made with."""
        self.position += 1
        numbers = self
        while numbers.earlier is not None and self.position <= numbers.since:
            numbers = numbers.earlier
        return numbers.key

    def integer(self) -> int:
        """SQLite's ``random()``: any 64-bit signed integer."""
        if self.seed is None:
            return secrets.randbits(64) - (1 << 63)
        key = self._next_key()
        draw = hashlib.blake2b(self.position.to_bytes(8, "big"), digest_size=8, key=key)
        return int.from_bytes(draw.digest(), "big", signed=True)

    def blob(self, length: Any) -> bytes:
        """SQLite's ``randomblob(length)``: that many bytes, at least one; ``DatabaseError`` above 64 MiB."""
        size = max(1, int(length or 0))
        if size > _LARGEST_BLOB:
            raise DatabaseError("string or blob too big")
        if self.seed is None:
            return secrets.token_bytes(size)
        key = self._next_key()
        return hashlib.shake_128(key + self.position.to_bytes(8, "big")).digest(size)


@lru_cache(maxsize=64)
def _key_of(seed: int | None) -> bytes:
    return hashlib.blake2b(str(seed).encode(), digest_size=32).digest()


def read_moment(now: str | datetime | None) -> datetime | None:
    """``now`` (ISO 8601 text or a datetime; UTC if it names no time zone) as an aware datetime."""
    if isinstance(now, str):
        try:
            now = datetime.fromisoformat(now.strip().upper())
        except ValueError as error:
            raise DatabaseError(
                f"now={now!r} is not a date or time", remedy='Write it like "2025-05-19T09:00:00Z".'
            ) from error
    if isinstance(now, datetime) and now.tzinfo is None:
        return now.replace(tzinfo=UTC)
    return now


def install_functions(target: Any, randomness: Randomness, now: datetime | None) -> None:
    """Take random numbers from ``randomness`` and stop the clock at ``now``, if they are given.

    ``target`` is a connection of ``sqlite3``, or SQLAlchemy's adapter of one.  Its clock is not that of a VFS
    of ours, so the functions that ask for it are replaced.
    """
    if randomness.seed is not None:
        target.create_function("random", 0, randomness.integer)
        target.create_function("randomblob", 1, randomness.blob)
    if now is not None:
        clock = _clock(now)
        # deterministic, because the originals may stand in indexes, CHECK and generated columns
        for name in _DATE_FUNCTIONS:
            target.create_function(name, -1, partial(clock, name), deterministic=True)
        for keyword, function in _KEYWORDS.items():
            target.create_function(keyword, 0, partial(clock, function), deterministic=True)


def _clock(now: datetime) -> Callable[..., Any]:
    """SQLite's date functions, computed by SQLite, with "now" and left-out times replaced by ``now``."""
    text = now.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    # unrelated to any file, and used by one statement at a time, in any thread
    calculator = sqlite3.connect(":memory:", check_same_thread=False)

    def call(function: str, *values: Any) -> Any:
        at = _DATE_FUNCTIONS[function]
        if not values[at:] or (isinstance(values[at], str) and values[at].lower() == "now"):
            values = (*values[:at], text, *values[at + 1 :])
        places = ", ".join("?" * len(values))
        return calculator.execute(f"SELECT {function}({places})", values).fetchone()[0]

    return call
