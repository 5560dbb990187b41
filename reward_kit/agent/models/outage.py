"""Detection of a provider that is down, and of conversations that fail for their own reasons."""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from reward_kit.agent.models.limiter import Call
    from reward_kit.errors import ModelError

FAILURES = 3
"""Failures in a row from which on a provider may be down."""
FIRST_INTERVAL, LONGEST_INTERVAL = 1.0, 60.0
"""Seconds between two tries while it is down,"""
LATENESS = 0.25
"""and the longest interval as a share of the outage so far."""
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
REPEAT = 60.0
"""Seconds until the same notice is given again."""
LONGEST_REASON = 100

_random = random.SystemRandom()


class Misses:
    """The share of attempts that fail without a refusal: no answer, or a server error.

    ``last_series`` is the time of the last failure that had others just before it, ``FAILURES`` in all.
    """

    def __init__(self) -> None:
        self.in_a_row = 0
        self.share = 0.0
        self.last_series = -math.inf
        self._recent = 0.0

    def answered(self) -> None:
        """Count a good answer."""
        self.in_a_row = 0
        self._recent -= self._recent / MEMORY
        self.share = self._recent

    def missed(self, now: float) -> None:
        """Count a failure."""
        self.in_a_row += 1
        if self.in_a_row >= FAILURES:
            self.last_series = now
        self._recent += (1.0 - self._recent) / MEMORY

    def too_many(self, in_flight: int) -> bool:
        """True if more have failed in a row than by chance, as errors come back before answers do.

        The bound is that of the binomial distribution, approximated by the normal one.
        """
        attempts = self.in_a_row + in_flight
        share = max(self.share, EXPECTED)
        usual = attempts * share + DEVIATIONS * math.sqrt(attempts * share * (1.0 - share))
        return self.in_a_row >= FAILURES - 1 + usual

    def by_chance(self, failures: int) -> bool:
        """True if ``failures`` in a row of one call may come of the share of all calls that fail."""
        return self.share > EXPECTED and self.share**failures > SURE


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
        call.answers_before = self._answers + in_flight - 1

    def answered(self, call: Call) -> None:
        """Count a good answer."""
        self._answers += 1
        self._streaks.pop(call.caller.conversation, None)

    def failed(self, call: Call, now: float, *, least: int = 2) -> bool:
        """Count a failure; True if it is the conversation's own fault, which takes ``least`` in a row."""
        streak = self._streaks.setdefault(
            call.caller.conversation, _Streak(now, call.answers_before, self._faults)
        )
        streak.failures += 1
        answered = max(0, self._answers - streak.answers)
        failed = self._faults - streak.faults
        share = (failed + 1) / (failed + answered + 1)
        if streak.failures >= least and share**streak.failures <= UNLIKELY:
            return True
        self._faults += 1
        streak.faults += 1  # its own failure says nothing about the others
        return False

    def failures(self, call: Call) -> int:
        """Failures in a row of the call's conversation."""
        streak = self._streaks.get(call.caller.conversation)
        return streak.failures if streak else 0

    def seconds(self, call: Call, now: float) -> float:
        """Seconds for which the call's conversation has failed."""
        streak = self._streaks.get(call.caller.conversation)
        return now - streak.began if streak else 0.0


class Outage:
    """Failures in a row of all calls, and the moments of the tries while the provider is down.

    ``since`` is the time of the first failure since the last good answer; None while all is well.
    """

    def __init__(self) -> None:
        self.since: float | None = None
        self.down = False
        self.next_try = 0.0
        self.noticed = False
        self._since_clock = 0.0
        self._interval = FIRST_INTERVAL
        self._broken = self._unreached = 0
        self._calls: set[Call] = set()
        self._tasks: set[Hashable] = set()

    @property
    def began(self) -> str:
        """The time of day at which it began: ``12:03``."""
        return time.strftime("%H:%M", time.localtime(self._since_clock))

    @property
    def of_one(self) -> bool:
        """True if calls of one task only have failed since the last good answer."""
        return len(self._tasks) <= 1

    def begin(self, call: Call, now: float) -> None:
        """Note a failure."""
        self._tasks.add(call.caller.task)
        if self.since is None:
            self.since, self._since_clock = now, time.time()

    def count(self, call: Call, fault: ModelError, now: float, *, too_many: bool) -> bool:
        """Count a call without an answer, or with a server error; True if the provider is down from now on.

        Failures of one task do not suffice, unless the server was not even reached: the task may be what
        breaks it. Attempts count where the connection failed, calls elsewhere.
        """
        self.begin(call, now)
        self._unreached += fault.no_answer == "connection"
        self._broken += fault.no_answer in ("connection", "broken off")
        self._calls.add(call)
        failures = self._unreached if self.of_one else max(self._broken, len(self._calls))
        if self.down or not too_many or failures < FAILURES:
            return False
        self.down, self._interval = True, FIRST_INTERVAL
        self._plan(now)
        return True

    def failed_again(self, now: float) -> None:
        """Plan the next try after one that has failed."""
        so_far = now - (now if self.since is None else self.since)
        self._interval = min(LONGEST_INTERVAL, self._interval * 2, max(FIRST_INTERVAL, so_far * LATENESS))
        self._plan(now)

    def end(self) -> None:
        """Note that the provider answers."""
        self.since = None
        self.down = self.noticed = False
        self._broken = self._unreached = 0
        self._calls.clear()
        self._tasks.clear()

    def _plan(self, now: float) -> None:
        self.next_try = now + self._interval * _random.uniform(0.5, 1.0)


class Notices:
    """Messages about one provider, each state once a minute; ``tell`` shows them."""

    def __init__(self, name: str, tell: Callable[[str], None]) -> None:
        self._name = name
        self._tell = tell
        self._given: dict[str, float] = {}
        self._paused = -math.inf

    def down(self, began: str, fault: ModelError, wait: float, now: float) -> None:
        """The provider has failed again and is tried again after ``wait`` seconds."""
        text = f"has not answered since {began} ({_reason(fault)}); retrying in {_duration(max(0.0, wait))}"
        self._give(_state(fault), text, now)

    def refuses(self, began: str, fault: ModelError, now: float) -> None:
        """The provider has refused all calls for a while."""
        self._give(_state(fault), f"has refused all calls since {began} ({_reason(fault)}); waiting", now)

    def pause(self, seconds: float, fault: ModelError, now: float) -> None:
        """The provider wants no calls for ``seconds``."""
        if now - self._paused >= REPEAT:
            self._paused = now
            text = f"is rate-limiting (HTTP {fault.status}); pausing for {_duration(seconds)}"
            self._tell(f"{self._name} {text}")

    def back(self, seconds: float) -> None:
        """The provider answers again; told once after each time that it failed."""
        if self._given:
            self._given.clear()
            self._tell(f"{self._name} answers again after {_duration(seconds)}")

    def _give(self, state: str, text: str, now: float) -> None:
        if now - self._given.get(state, -math.inf) >= REPEAT:
            self._given[state] = now
            self._tell(f"{self._name} {text}")


def _state(fault: ModelError) -> str:
    """The kind of a failure; numbers that change with each answer are no news."""
    return f"{fault.status} {fault.no_answer}"


def _reason(fault: ModelError) -> str:
    return fault.fault[:LONGEST_REASON]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
