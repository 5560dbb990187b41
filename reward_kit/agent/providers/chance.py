"""Whether a provider refuses calls by chance, so that it helps nobody to ask less often."""

from __future__ import annotations

import math
from collections import deque

ENOUGH = 5.0
"""Chance is tried out where it explains what has been seen exp(5), about 150, times better than a limit."""
UNEVEN = 0.25
"""Part of the most calls that were let through from one of the last refusals to the next. A limit lets about
as many through each time, or more and more; fewer calls than that pass"""
FEWER, NO_FEWER = 2.5, -0.2
"""by chance in about one case of three, and at a limit in one of thirty: roughly the logarithms of what the
two say to fewer, and to as many or more. Where each so many-th call is refused, it is never fewer."""
LESS = 0.75
"""Part of the calls under way at the last refusals: with more, it may be that they were still too many."""
FEWER_TOLD = 5.0
"""The same where a refusal names the time: a limit's would have to be too short for that, which is hardly
ever seen. From the third refusal on, as others may have used up a part of what there was at first."""
ODD = 3.0
"""The same where a call was refused alone and far more often calls were let through lately: no limit explains
that, unless it has changed or is shared."""
LATELY = 4
"""Refusals that are compared with the next one."""
LET_THROUGH = 0.75
"""Part of the calls made again at once that is let through by chance; by a limit, those for which it has room
by then."""
SINGLE, IN_SEQUENCE = 0.45, -0.9
"""A server that answers with errors by chance does so one by one in four cases of five, an overloaded one in
one of two: the logarithms of 0.8 / 0.5 and 0.2 / 0.5."""


class Chance:
    """Weighs chance against a limit, of calls at once or in a time.

    The weight is that of a sequential probability ratio test (A. Wald 1945), with 0 as its least
    (E. S. Page 1954).
    """

    __slots__ = ("_between", "_enough", "_weight")

    def __init__(self) -> None:
        self._between: deque[tuple[int, int]] = deque(maxlen=LATELY)
        self._weight = 0.0
        self._enough = ENOUGH

    @property
    def likely(self) -> bool:
        """Whether it is worth a trial."""
        return self._weight >= self._enough

    def refused(self, passed: int, under_way: int, *, told: bool, odd: bool = False) -> None:
        """A call was refused, with so many under way; ``passed`` were let through since the last refusal.

        ``told``: a time was named. ``odd``: alone, where far more calls a second went through lately.
        """
        if not passed:  # it is the same limit that was reached before, or it named too short a time
            return
        most = max((earlier for earlier, _ in self._between), default=0)
        load = max((earlier for _, earlier in self._between), default=0)
        if odd:
            self._weigh(ODD)
        elif passed > UNEVEN * most:
            self._weigh(NO_FEWER)
        elif told or under_way <= LESS * load:
            self._weigh(FEWER_TOLD if told and len(self._between) > 1 else FEWER)
        self._between.append((passed, under_way))

    def missed(self, *, single: bool) -> None:
        """A call ended in a server's error. ``single``: it was the first in a row."""
        self._weigh(SINGLE if single else IN_SEQUENCE)

    def asked_again(self, room: float, *, refused: bool) -> None:
        """A refused call alone was made again at once.

        ``room`` is the number of answers, of which each makes room for a call, to be expected till then.
        """
        by_limit = 1.0 - math.exp(-room)
        if refused:
            self._weigh(math.log((1.0 - LET_THROUGH) / (1.0 - by_limit)))
        else:
            self._weigh(math.log(LET_THROUGH / by_limit))

    def refuted(self, *, soon: bool) -> None:
        """It was none; ``soon``: so soon that the next time it takes twice as much to try it out."""
        self._enough = 2 * self._enough if soon else ENOUGH
        self._weight = 0.0
        self._between.clear()

    def _weigh(self, more: float) -> None:
        self._weight = max(0.0, self._weight + more)
