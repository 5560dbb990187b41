"""Going on in spite of refusals, as long as it seems that they come by chance."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from reward_kit.agent.providers.chance import Chance
from reward_kit.agent.providers.pauses import jitter, soon

if TYPE_CHECKING:
    from reward_kit.agent.providers.concurrency import Concurrency
    from reward_kit.agent.providers.spacing import Spacing
    from reward_kit.agent.providers.visit import Visit
    from reward_kit.errors import ModelError

LONGEST_TOLD = 60.0
"""Seconds; a provider that asks a call to wait longer than this is left alone by all."""
TELLING = 1.0
"""Answers that are to be expected until a refused call can be made again: with more, room may have been made
for it, and that it is let through tells little."""
LEAST_ROOM = 0.05
"""The fewest that are thought to be expected: others may leave room as well."""
MOST_SKIPPED = 7
"""Refusals after which no call is sent ahead, because those that were have been refused again: 1, 3, 7."""
RECENT = 32
"""Calls that were sent one after the other. A trial has failed if"""
FAILED = 26
"""so many of them were refused, or"""
TOLD = 16
"""so many told to wait, or"""
IN_A_ROW = 12
"""one was refused so often. Where chance refuses less than half of the calls, that hardly ever happens."""
LONG = 64
"""Calls made again in a trial that did not fail too soon."""


class Trial:
    """Lets the number of calls grow where refusals look like ``Chance``; takes that back if it was none.

    Calls are made again at once, with no other call the slower for it: what has reached a limit is refused
    again. A call that was told when to come back waits till then in any case; in a trial no other does.
    """

    def __init__(self, concurrency: Concurrency, spacing: Spacing) -> None:
        self.on = False
        self.let_through = False
        """Whether the last call that was sent ahead was let through."""
        self._concurrency = concurrency
        self._spacing = spacing
        self._chance = Chance()
        self._sent = 0
        self._made_again = 0
        self._refused: deque[int] = deque(maxlen=RECENT)
        self._told: deque[int] = deque(maxlen=RECENT)
        self._ahead: Visit | None = None
        self._room = 0.0
        self._skipped = 0
        self._to_skip = 0

    def sent(self, visit: Visit) -> None:
        """A call is sent."""
        self._sent += 1
        visit.number = self._sent

    def heeded(
        self, visit: Visit, fault: ModelError, passed: int, under_way: int, now: float, *, odd: bool
    ) -> None:
        """A refusal was heeded, with so many calls under way: perhaps a trial begins.

        Otherwise the refused call may be sent ahead, to see how it fares while all others pause. ``odd``: see
        ``Spacing.refused``.
        """
        self._chance.refused(passed, under_way, told=bool(fault.retry_after), odd=odd)
        if self._begins() or fault.retry_after or self._ahead is not None:
            return
        if not self._spacing.suits(passed):  # where it does, the call has only come a little too early
            self._send_ahead(visit, under_way * (now - visit.sent))

    def missed(self, *, single: bool) -> None:
        """A server's error was heeded. ``single``: it was the first in a row."""
        self._chance.missed(single=single)
        self._begins()

    def excuses(self, visit: Visit, fault: ModelError, now: float) -> bool:
        """Whether to pass over a refusal, and ask again at once or at the time that the call was told."""
        asked = fault.retry_after or 0.0
        if visit is self._ahead:
            if not asked:
                self._concurrency.forget(visit)
                self._came_back(refused=True)
                return True
            self._ahead = None
        if not self.on or asked > LONGEST_TOLD:
            return False
        visit.again += 1
        if self._too_many(visit, fault):
            self._end()
            visit.again = 0
            return False
        self._made_again += 1
        visit.not_before = now + (asked + jitter(asked) if asked else soon(now - visit.sent))
        return True

    def answered(self, visit: Visit) -> None:
        """A call has its answer."""
        if visit is self._ahead:
            self._came_back(refused=False)

    def forget(self, visit: Visit) -> None:
        """A call that was sent ahead tells nothing: it could not go at once, or failed otherwise."""
        if visit is self._ahead:
            self._ahead = None

    def _send_ahead(self, visit: Visit, seconds: float) -> None:
        """Unless the last ones were refused again, and where it tells something."""
        self._skipped += 1
        room = seconds / (self._spacing.latency or 1e-9)
        if self._skipped > self._to_skip and room <= TELLING:
            self._ahead = visit
            self._room = max(room, LEAST_ROOM)
            self._skipped = 0
            visit.ahead = True

    def _came_back(self, *, refused: bool) -> None:
        self._ahead = None
        self.let_through = not refused
        self._to_skip = min(MOST_SKIPPED, 2 * self._to_skip + 1) if refused else 0
        if not self.on:
            self._chance.asked_again(self._room, refused=refused)
            self._begins()

    def _begins(self) -> bool:
        if self._chance.likely:
            self.on = True
            self._concurrency.venture()
            self._spacing.rest()
        return self.on

    def _too_many(self, visit: Visit, fault: ModelError) -> bool:
        """Whether this refusal ends the trial. Answers come later, so calls count as they were sent."""
        if visit.again > IN_A_ROW:
            return True
        numbers, most = (self._told, TOLD) if fault.retry_after else (self._refused, FAILED)
        numbers.append(visit.number)
        return sum(visit.number - RECENT < number <= visit.number for number in numbers) >= most

    def _end(self) -> None:
        self.on = False
        self._chance.refuted(soon=self._made_again < LONG)
        self._made_again = 0
        self._refused.clear()
        self._told.clear()
        self._concurrency.retreat()
        self._spacing.resume()
