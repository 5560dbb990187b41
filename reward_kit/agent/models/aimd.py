"""The number of calls that a provider takes at once, learned from its answers and refusals."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from reward_kit.agent.base.network import backoff

if TYPE_CHECKING:
    from reward_kit.agent.models.calls import Call

START, RESTART = 16.0, 2.0
"""Calls at once at first, doubled in the time of an answer until the first refusal; and after an outage."""
DECREASE = 0.75
"""Factor by which the number shrinks."""
INCREASE, SLOWER_BELOW = 0.1, 8.0
"""Share by which it grows in the time of an answer; half of that at the second number, less below it."""
TOLERATED, MOST_TOLERATED, DOUBT = 0.15, 0.8, 3.0
"""Share of refused calls that is put down to chance, at first and at most; a multiple for other failures."""
PRIOR, MEMORY = 8, 64
"""Good answers that are assumed before the first one, and calls after which the counts are halved."""
SPREAD, SILENCE = 0.95, 2.0
"""Multiples of an answer's time: the calls in flight are spread over the first; without an answer for the
second, the calls of a second or minute are used up."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds of the first pause then, doubled with each further one; the longest time between two calls."""
FELL, PROPORTIONAL, ENOUGH = 0.6, 1.25, 5
"""A fall to the share ``FELL`` is judged after ``ENOUGH`` answers; see ``_undo``."""


class AIMD:
    """Additive increase, multiplicative decrease of the calls in flight, as in TCP; ``ceiling`` at most.

    The ``limit`` may fall below one: calls are then further apart than an answer takes. A call notes the
    ``generation`` when it is sent: refusals of calls that were sent before the limit last shrank say nothing
    about the new limit.
    """

    def __init__(self, ceiling: int) -> None:
        self.ceiling = float(ceiling)
        self.limit = min(START, self.ceiling)
        self.generation = 0
        self.latency = 0.0
        self._last_answer = -math.inf
        self._was_refused = False
        self._tolerated: float | None = None
        self._pauses = 0
        self._fall: tuple[float, float] | None = None
        self._begin(0.0)

    @property
    def at_once(self) -> int:
        """Calls that may be in flight together; at least one."""
        return max(1, int(self.limit + 1e-9))

    @property
    def spacing(self) -> float:
        """Seconds between the starts of two calls."""
        return min(LONGEST_PAUSE, SPREAD * self.latency / self.limit) if self._was_refused else 0.0

    def sent(self, call: Call) -> None:
        """Count a call that is sent."""
        call.generation = self.generation
        self._sent += 1
        if self._sent >= MEMORY:
            self._sent /= 2
            self._refused /= 2

    def answered(self, call: Call, now: float, *, full: bool) -> None:
        """Count a good answer; ``full``: there was no room for more calls."""
        self.latency += (now - call.sent - self.latency) / (8 if self.latency else 1)
        self._last_answer = now
        self._answers += 1
        self._pauses = 0
        if full and call.generation == self.generation:
            step = INCREASE * self.limit / (self.limit + SLOWER_BELOW) if self._was_refused else 1.0
            self.limit = min(self.ceiling, self.limit + step)

    def refused(self, call: Call, now: float, *, window: bool | None, doubtful: bool) -> float:
        """Count a refused call; returns the seconds of a pause for all calls.

        ``window``, if the provider says when to come back: True for a limit per window, which always
        shrinks the number. ``doubtful``: the call may have failed for another reason.
        """
        if call.generation != self.generation:
            return 0.0
        self._refused += 1
        if not window:
            share = self._refused / (self._sent + PRIOR)
            seconds = now - self._since
            default = TOLERATED if window is None else 0.0
            tolerated = default if self._tolerated is None else self._tolerated
            if share < tolerated * (DOUBT if doubtful else 1.0) or seconds < self.latency:
                return 0.0
            if self.latency and now - self._last_answer > SILENCE * max(self.latency, self.spacing):
                self._begin(now)
                self._tolerated, self._fall = None, None
                self._pauses += 1
                return min(LONGEST_PAUSE, backoff(self._pauses, first=FIRST_PAUSE))
            if self._answers and self._undo(self._answers / max(1e-3, seconds)):
                self._tolerated = min(MOST_TOLERATED, 2.0 * share)
                self._begin(now)
                return 0.0
        if self._answers or not self._was_refused:  # else the reason of the last decrease still holds
            self._was_refused = True
            self.limit = max(SPREAD * self.latency / LONGEST_PAUSE, self.limit * DECREASE)
            self._begin(now)
        return 0.0

    def restart(self, now: float, limit: float = RESTART) -> None:
        """Begin again after a pause, with fewer calls at once if there were more than ``limit``."""
        self.limit, self._fall = min(self.limit, limit), None
        self._begin(now)

    def _undo(self, rate: float) -> bool:
        """Undo a fall that has not helped: with fewer calls, proportionally fewer were answered.

        Below a limit the answers per second, ``rate``, would be as many as before: calls are refused by
        chance.
        """
        limit, rate_then = self._fall or (self.limit, rate)
        fell = self.limit / limit
        if self._fall is None or rate >= PROPORTIONAL * fell * rate_then:
            self._fall = self.limit, rate
            return False
        if self._answers < ENOUGH or fell >= FELL:
            return False
        self.limit, self._fall, self._was_refused = limit, None, False
        return True

    def _begin(self, now: float) -> None:
        """Begin a new generation."""
        self.generation += 1
        self._sent = self._refused = 0.0
        self._answers = 0
        self._since = now
