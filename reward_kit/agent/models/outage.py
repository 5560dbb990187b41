"""Detection of a provider that is down, and of conversations that fail for their own reasons."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reward_kit.agent.base.network import backoff

if TYPE_CHECKING:
    from collections.abc import Hashable

    from reward_kit.agent.models.calls import Call
    from reward_kit.errors import ModelError

FAILURES, MOST_MORE = 3, 20
"""Failures in a row that mean an outage, and the most that calls in flight add to them, one each."""
FIRST_INTERVAL = 1.0
"""Seconds until the first try while it is down, doubled with each further one."""
MEMORY = 64
"""Attempts of which the share that failed is known; older ones count ever less."""
EXPECTED = 0.03
"""Share of failing attempts up to which each failure costs a retry."""
SURE = 1e-3
"""Probability below which failures in a row of one conversation are no longer put down to chance."""
UNLIKELY = 1 / 64
"""Probability, judged by the other calls, below which a conversation's failures are its own fault."""


@dataclass(slots=True)
class Streak:
    """Failures in a row of one conversation: their begin, and the fate of other calls since then.

    ``is_own``: the conversation is at fault, since the others fare better.
    """

    began: float
    answers: int
    faults: int
    failures: int = 0
    is_own: bool = False


class Failures:
    """Failures of calls to a provider: by chance, of one conversation, or of all since the last good answer.

    A limit or an outage affects all alike. A conversation that has more tokens than a limit, or that breaks
    the server, fails each time while the others are answered.

    ``since`` is the time of the first failure of all, ``began`` its time of day, ``next_try`` the time of the
    next try while the provider is ``down``. ``of_one``: calls of one task only have failed.
    """

    def __init__(self) -> None:
        self._share = self._share_before = 0.0
        self._answers = self._faults = 0
        self._streaks: dict[Hashable, Streak] = {}
        self.end()

    def end(self) -> None:
        """Note that the provider answers."""
        self.since: float | None = None
        self.began = ""
        self.down = False
        self.next_try = 0.0
        self._in_a_row = self._tries = 0
        self._tasks: set[Hashable] = set()

    @property
    def of_one(self) -> bool:
        return len(self._tasks) <= 1

    def sent(self, call: Call, in_flight: int) -> None:
        """Note that a call is sent: answers to those in flight say nothing about it."""
        call.answers_before = self._answers + in_flight

    def answered(self, call: Call) -> None:
        """Count a good answer."""
        self._answers += 1
        self._streaks.pop(call.caller.conversation, None)
        self._share -= self._share / MEMORY
        self._share_before = self._share  # later failures may be an outage

    def failed(self, call: Call, now: float, *, refused: bool, least: int) -> Streak:
        """Count a failure; it takes ``least`` in a row to be the conversation's own."""
        if not refused:  # no answer, or a server error
            self._share += (1.0 - self._share) / MEMORY
        new = Streak(now, call.answers_before, self._faults)
        streak = self._streaks.setdefault(call.caller.conversation, new)
        streak.failures += 1
        failed = self._faults - streak.faults
        share = (failed + 1) / (failed + max(0, self._answers - streak.answers) + 1)
        streak.is_own = streak.failures >= least and share**streak.failures <= UNLIKELY
        if not streak.is_own:
            self._faults += 1
            streak.faults += 1  # its own failure says nothing about the others
        return streak

    def is_chance(self, failures: int) -> bool:
        """True if ``failures`` in a row of one call are likely, given the share of all attempts that fail."""
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
        breaks it. Failures by chance, which come back before answers do, are fewer than the calls in flight.
        """
        self._in_a_row += 1
        if self._in_a_row < FAILURES + min(in_flight, MOST_MORE) or (
            self.of_one and fault.no_answer != "connection"
        ):
            return False
        self.down = True
        self.plan_try(now)
        return True

    def plan_try(self, now: float) -> None:
        """Plan the next try."""
        self._tries += 1
        self.next_try = now + backoff(self._tries, first=FIRST_INTERVAL)
