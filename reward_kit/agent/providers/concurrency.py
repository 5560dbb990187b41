"""How many calls a provider may have at once, found out by asking."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_kit.agent.providers.visit import Visit

START = 16
"""Calls at once before anything is known. Doubling, 500 are reached after five answers' time."""
RESTART = 2
"""Calls at once after a pause."""
STEP = 1 / 20
"""Part by which the number grows in an answer's time where it has been too high before; at least one, and"""
TOWARDS = 1 / 4
"""that part of the way to the number that was refused last, or away from it where it has been passed."""
NEAR = 0.1
"""Part by which two numbers that were refused may differ and count as the same,"""
KNOWN = 0.9
"""which leaves so much of it: more than where nothing is known."""
FAR_BELOW = 0.5
"""Part of the number that was possible before. What is refused below that is refused for another reason: the
calls of the minute are used up. Then only a tenth is taken off.
"""
FIRST_HOLD, LONGEST_HOLD = 8, 256
"""Answers' times at the number below the refused one, before that is tried again."""


class Concurrency:
    """A number between 1 and ``ceiling`` that grows with good answers and shrinks with refusals.

    It doubles in an answer's time until the first refusal, then up to where the last refusal left it, and
    grows by ``STEP`` or ``TOWARDS`` the refused number from there (which is what BIC does; L. Xu, K. Harfoush
    and I. Rhee 2004). Before it comes to what was refused the last time it stays for some
    answers' times, twice as many each time that this number is refused again; if fewer are refused then, the
    number had nothing to do with it. A call notes the ``generation`` when it is sent: refusals of calls that
    were sent before the number shrank say nothing of the new number.
    """

    __slots__ = (
        "_good",
        "_hold",
        "_known",
        "_passed",
        "_refused",
        "_resuming",
        "_safe",
        "_sent",
        "ceiling",
        "generation",
        "limit",
    )

    def __init__(self, ceiling: int) -> None:
        self.ceiling = float(ceiling)
        self.limit = min(float(START), self.ceiling)
        self.generation = 0
        self._known = math.inf
        self._refused = math.inf
        self._hold = 0
        self._good = 0
        self._sent = 0
        self._passed = 0
        self._resuming = False
        self._safe = (self.limit, self._known, self._refused, self._hold)

    def send(self, visit: Visit) -> None:
        """A call is sent."""
        self._sent += 1
        visit.generation, visit.place = self.generation, self._sent

    def passed(self, visit: Visit) -> int:
        """Calls that were let through since the last refusal, when this one was refused."""
        return visit.place - 1 if visit.generation == self.generation else 0

    def forget(self, visit: Visit) -> None:
        """A call of this generation was refused, and that says nothing."""
        self._sent -= visit.generation == self.generation

    def grow(self, generation: int) -> None:
        """A good answer came to a call of ``generation``, and there was no room for more calls."""
        if generation != self.generation or self.limit >= self.ceiling:
            return
        step = 1.0
        if self.limit >= self._known:
            way = abs(self._refused - self.limit) if self._refused < math.inf else 0.0
            step = max(1.0, self.limit * STEP, way * TOWARDS) / self.limit
        if self.limit < self._refused <= self.limit + step:
            self._good += 1
            if self._good <= self._hold * self.limit:
                return
        self.limit = min(self.ceiling, self.limit + step)

    def shrink(self, generation: int, factor: float, under_way: int) -> bool:
        """A call of ``generation`` was refused; False if that has been answered for already."""
        if not self.stay(generation):
            return False
        refused = min(self.limit, under_way)
        if RESTART < refused < FAR_BELOW * self._known < math.inf:
            self._known = max(1.0, self._known * KNOWN)
            self.limit = min(self.limit, self._known)
            return True
        if refused <= 1.0 or (self._hold and refused < self._refused - max(1.0, NEAR * refused)):
            # alone, or with fewer than were thought to be borne: the number was not what was refused
            self._refused, self._hold = math.inf, 0
            self.limit = self._known = max(1.0, refused * KNOWN)
            return True
        again = abs(refused - self._refused) <= max(1.0, NEAR * refused)
        self._hold = min(LONGEST_HOLD, max(FIRST_HOLD, 2 * self._hold)) if again else 0
        self._good = 0
        self._refused = refused
        self.limit = self._known = max(1.0, refused * (max(factor, KNOWN) if again else factor))
        return True

    def stay(self, generation: int) -> bool:
        """The same where it says nothing of the number: none has been let through since the last refusal."""
        if generation != self.generation:
            self._passed -= generation == self.generation - 1
            return False
        self.generation += 1
        self._passed, self._sent = self._sent - 1, 0
        return True

    def restart(self) -> None:
        """Begin with few calls again, up to what was possible before."""
        if not self._resuming:
            self.limit = min(self.limit, float(RESTART))

    def pause(self) -> None:
        """The provider has named a time before which it takes no call; ``resume`` follows then."""
        self._resuming = True

    def resume(self, under_way: int) -> None:
        """That time is over: as many calls as were let through before it may join those ``under_way``."""
        if self._resuming:
            self._resuming = False
            more = min(self.limit, self._passed)
            self.limit = min(self.ceiling, max(1.0, under_way + more))

    def venture(self) -> None:
        """Forget what was refused, for a trial."""
        self._safe = (self.limit, self._known, self._refused, self._hold)
        self._known = self._refused = math.inf
        self._hold = 0

    def retreat(self) -> None:
        """The trial has failed: go back to what was known before."""
        self.limit, self._known, self._refused, self._hold = self._safe
