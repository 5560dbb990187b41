"""Detection of a provider that is down, and of conversations that fail for their own reasons."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from reward_kit.agent.models.calls import Call
    from reward_kit.errors import ModelError

FAILURES = 3
"""Failures in a row from which on a provider may be down."""
FIRST_INTERVAL, LONGEST_INTERVAL = 1.0, 60.0
"""Seconds between two tries while it is down."""
LATENESS = 0.25
"""Longest interval as a share of the outage so far."""
MEMORY = 64
"""Attempts of which the share that failed is known; older ones count ever less."""
EXPECTED = 0.03
"""Share of attempts that is thought to fail by chance until more do."""
DEVIATIONS = 3.0
"""Standard deviations by which more must fail in a row than do by chance."""
SURE = 1e-3
"""Probability below which failures in a row of one conversation are no longer put down to chance."""
UNLIKELY = 1 / 64
"""Probability below which a conversation's failures are its own fault, if it fares as the others do."""

_random = random.SystemRandom()


@dataclass(slots=True)
class _Streak:
    """Failures in a row of one conversation: their begin, and the fate of other calls since then."""

    began: float
    answers: int
    faults: int
    failures: int = 0


class Blame:
    """Compares the failures of each conversation with those of all others.

    A limit or an outage affects all alike. A conversation that has more tokens than a limit, or that breaks
    the server, fails each time while the others are answered.
    """

    def __init__(self) -> None:
        self._answers = 0
        self._faults = 0
        self._streaks: dict[Hashable, _Streak] = {}

    def sent(self, call: Call, in_flight: int) -> None:
        """Note that a call is sent: answers to those in flight say nothing about it."""
        call.answers_before = self._answers + in_flight

    def answered(self, call: Call) -> None:
        """Count a good answer."""
        self._answers += 1
        self._streaks.pop(call.caller.conversation, None)

    def failed(self, call: Call, now: float, *, least: int) -> tuple[bool, int, float]:
        """Count a failure.

        Returns True if it is the conversation's own fault, which takes ``least`` in a row; the number of its
        failures in a row; and their seconds.
        """
        streak = self._streaks.setdefault(
            call.caller.conversation, _Streak(now, call.answers_before, self._faults)
        )
        streak.failures += 1
        answered = max(0, self._answers - streak.answers)
        failed = self._faults - streak.faults
        share = (failed + 1) / (failed + answered + 1)
        own = streak.failures >= least and share**streak.failures <= UNLIKELY
        if not own:
            self._faults += 1
            streak.faults += 1  # its own failure says nothing about the others
        return own, streak.failures, now - streak.began


class Outage:
    """Failures in a row of all calls, and the moments of the tries while the provider is down.

    ``since`` is the time of the first failure since the last good answer, ``began`` the time of day.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.began = ""
        self.down = False
        self.next_try = 0.0
        self._in_a_row = 0
        self._share = self._share_before = 0.0
        self._interval = FIRST_INTERVAL
        self._tasks: set[Hashable] = set()

    @property
    def of_one(self) -> bool:
        """True if calls of one task only have failed since the last good answer."""
        return len(self._tasks) <= 1

    def answered(self) -> None:
        """Count a good answer."""
        self._in_a_row = 0
        self._share -= self._share / MEMORY
        self._share_before = self._share  # later failures may be an outage

    def missed(self) -> None:
        """Count an attempt that failed without a refusal: no answer, or a server error."""
        self._in_a_row += 1
        self._share += (1.0 - self._share) / MEMORY

    def is_chance(self, failures: int) -> bool:
        """True if ``failures`` in a row of one call may come of the share of all calls that fail."""
        return self._share_before > EXPECTED and self._share_before**failures > SURE

    def note(self, call: Call, now: float) -> float:
        """Note a failure that may be the first of an outage; returns the time of that one."""
        self._tasks.add(call.caller.task)
        if self.since is None:
            self.since, self.began = now, time.strftime("%H:%M")
        return self.since

    def begins(self, fault: ModelError, now: float, in_flight: int) -> bool:
        """True if the provider is down from now on.

        Failures of one task do not suffice, unless the server was not even reached: the task may be what
        breaks it. More have to fail in a row than do by chance (binomial distribution, approximated by the
        normal one): errors come back before answers do.
        """
        share, attempts = max(self._share_before, EXPECTED), self._in_a_row + in_flight
        usual = attempts * share + DEVIATIONS * math.sqrt(attempts * share * (1.0 - share))
        if self._in_a_row < FAILURES - 1 + usual or (self.of_one and fault.no_answer != "connection"):
            return False
        self.down = True
        self._plan(FIRST_INTERVAL, now)
        return True

    def failed_again(self, now: float) -> None:
        """Plan the next try after one that has failed."""
        so_far = now - (now if self.since is None else self.since)
        longest = min(LONGEST_INTERVAL, max(FIRST_INTERVAL, so_far * LATENESS))
        self._plan(min(longest, self._interval * 2), now)

    def end(self) -> None:
        """Note that the provider answers."""
        self.since = None
        self.down = False
        self._tasks.clear()

    def _plan(self, interval: float, now: float) -> None:
        self._interval = interval
        self.next_try = now + interval * _random.uniform(0.5, 1.0)
