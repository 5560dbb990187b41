"""A provider that is down: how that is recognised, and when to try again."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

FAILURES = 3
"""So many in a row, and the provider is down."""
FIRST_INTERVAL = 1.0
LONGEST_INTERVAL = 60.0
"""Seconds between two tries."""
LATENESS = 0.25
"""Part of an outage that the interval may come to."""

_chance = random.SystemRandom()


@dataclass(slots=True)
class Outage:
    """Counts failures in a row, and spaces the tries while the provider is down; times are in seconds.

    ``since`` is when the provider failed first of all that it failed in a row; None while all is well.
    """

    since: float | None = None
    down: bool = False
    next_try: float = 0.0
    told: bool = False
    _since_clock: float = 0.0
    _interval: float = FIRST_INTERVAL
    _connections: int = 0
    _calls: set[int] = field(default_factory=set)

    @property
    def began(self) -> str:
        """The time of day at which it began: ``12:03``."""
        return time.strftime("%H:%M", time.localtime(self._since_clock))

    def begin(self, now: float) -> None:
        """Note that something went wrong, if it did not before."""
        if self.since is None:
            self.since = now
            self._since_clock = time.time()

    def count(self, call: int, now: float, *, connection: bool, too_many: bool) -> bool:
        """``call`` got no answer, or a server's error; True if the provider is down from now on.

        Without a connection each try counts; else each call does, since one conversation alone may be what
        breaks a server. ``too_many``: whether so many fail in a row hardly ever by chance.
        """
        self.begin(now)
        self._connections += connection
        self._calls.add(call)
        if self.down or not too_many or max(self._connections, len(self._calls)) < FAILURES:
            return False
        self.down = True
        self._interval = FIRST_INTERVAL
        self._plan(now)
        return True

    def failed_again(self, now: float) -> None:
        """A try has failed; the next one comes later, but not so that the outage ends much too late."""
        so_far = now - (now if self.since is None else self.since)
        self._interval = min(LONGEST_INTERVAL, self._interval * 2, max(FIRST_INTERVAL, so_far * LATENESS))
        self._plan(now)

    def end(self) -> None:
        """The provider has answered."""
        self.since = None
        self.down = self.told = False
        self._connections = 0
        self._calls.clear()

    def _plan(self, now: float) -> None:
        self.next_try = now + self._interval * _chance.uniform(0.5, 1.0)
