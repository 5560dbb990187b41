"""A provider that is down: how that is recognised, and when to try again."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from reward_kit.agent.providers.visit import Visit
    from reward_kit.errors import ModelError

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
    _unreached: int = 0
    _calls: set[Visit] = field(default_factory=set)
    _tasks: set[Hashable] = field(default_factory=set)

    @property
    def began(self) -> str:
        """The time of day at which it began: ``12:03``."""
        return time.strftime("%H:%M", time.localtime(self._since_clock))

    @property
    def of_one(self) -> bool:
        """Whether no other task has failed since the last good answer."""
        return len(self._tasks) <= 1

    def begin(self, now: float, call: Visit) -> None:
        """Note that something went wrong."""
        self._tasks.add(call.caller.task)
        if self.since is None:
            self.since = now
            self._since_clock = time.time()

    def count(self, call: Visit, fault: ModelError, now: float, *, too_many: bool) -> bool:
        """``call`` got no answer, or a server's error; True if the provider is down from now on.

        Without a connection, or where it broke off, each try counts; else each call does. Those of one task
        do not suffice, since it may be what breaks the server, unless that was not even reached.
        ``too_many``: whether so many fail in a row hardly ever by chance.
        """
        self.begin(now, call)
        self._unreached += fault.no_answer == "connection"
        self._connections += fault.no_answer in ("connection", "broken off")
        self._calls.add(call)
        failures = self._unreached if self.of_one else max(self._connections, len(self._calls))
        if self.down or not too_many or failures < FAILURES:
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
        self._connections = self._unreached = 0
        self._calls.clear()
        self._tasks.clear()

    def _plan(self, now: float) -> None:
        self.next_try = now + self._interval * _chance.uniform(0.5, 1.0)
