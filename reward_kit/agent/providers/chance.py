"""Whether a provider refuses calls by chance, so that it helps nobody to ask less often."""

from __future__ import annotations

from collections import deque

FIRST_TRIAL = 12
"""So many more refusals with a good answer since the last than without, and it is tried what comes of asking
again at once."""
RECENT = 32
"""Calls of a trial, made again at once, of which"""
FAILED = 20
"""so many were refused again if it has failed, or"""
IN_A_ROW = 8
"""one call so often. Where less than a third of the calls is refused by chance, that hardly ever happens."""
UNEVEN = 0.25
"""Part of the mean number of answers between two refusals that name a time. A limit lets about as many calls
through each time; where it was fewer than that once, it is chance."""
REFUSED_FOR_A_TIME = 12
"""So many of the last ``RECENT`` calls were told to wait, if a trial has failed for that."""
LONG = 64
"""Calls made again at once; a trial that fails earlier is repeated only after twice as many refusals."""


class Chance:
    """Tries out what comes of making refused calls again at once, with no other call the slower for it.

    What has reached a limit, of calls at once or in a time, refuses them again; chance does not. A call that
    was told when to come back waits till then in any case; in a trial no other does.
    """

    __slots__ = ("_answers", "_between", "_isolated", "_made", "_needed", "_recent", "_told", "trying")

    def __init__(self) -> None:
        self.trying = False
        self._answers = 0
        self._between: list[int] = []
        self._told: deque[bool] = deque(maxlen=RECENT)
        self._isolated = 0
        self._made = 0
        self._needed = FIRST_TRIAL
        self._recent: deque[bool] = deque(maxlen=RECENT)

    def heeded(self, *, isolated: bool) -> bool:
        """A refusal has been heeded; True if a trial begins. ``isolated``: an answer came since the last."""
        self._isolated = self._isolated + 1 if isolated else max(0, self._isolated - 1)
        self.trying = self._isolated >= self._needed
        return self.trying

    def heeded_for_a_time(self) -> bool:
        """The same of a refusal that names a time."""
        answers, self._answers = self._answers, 0
        if not answers:  # the one before named too short a time
            return False
        self._between.append(answers)
        counted = self._between[1:]  # others may have used up a part of what there was at first
        if 3 * len(counted) >= self._needed:
            self.trying = min(counted) <= UNEVEN * sum(counted) / len(counted)
        return self.trying

    def answered(self) -> None:
        """A call has its answer."""
        self._answers += 1
        if self.trying:
            self._told.append(False)

    def told_to_wait(self) -> bool:
        """In a trial, a call was refused for a time; True if that ends the trial."""
        self._told.append(True)
        return sum(self._told) >= REFUSED_FOR_A_TIME and self._fail()

    def made_again(self, *, refused: int = 0) -> bool:
        """How a call that was made again at once has ended; True if that ends the trial.

        ``refused``: so often, one time after the other, or not at all.
        """
        self._recent.append(refused > 0)
        self._made += 1
        if not self.trying or (refused < IN_A_ROW and sum(self._recent) < FAILED):
            return False
        return self._fail()

    def _fail(self) -> bool:
        self.trying = False
        self._needed = FIRST_TRIAL if self._made >= LONG else 2 * self._needed
        self._isolated = self._made = 0
        for kept in (self._between, self._recent, self._told):
            kept.clear()
        return True
