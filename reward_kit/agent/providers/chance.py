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
LONG = 64
"""Calls made again at once; a trial that fails earlier is repeated only after twice as many refusals."""


class Chance:
    """Tries out what comes of making refused calls again at once, with no other call the slower for it.

    What has reached a limit, of calls at once or in a time, refuses them again; chance does not.
    """

    __slots__ = ("_isolated", "_made", "_needed", "_recent", "trying")

    def __init__(self) -> None:
        self.trying = False
        self._isolated = 0
        self._made = 0
        self._needed = FIRST_TRIAL
        self._recent: deque[bool] = deque(maxlen=RECENT)

    def heeded(self, *, isolated: bool) -> bool:
        """A refusal has been heeded; True if a trial begins. ``isolated``: an answer came since the last."""
        self._isolated = self._isolated + 1 if isolated else max(0, self._isolated - 1)
        self.trying = self._isolated >= self._needed
        return self.trying

    def made_again(self, *, refused: int = 0) -> bool:
        """How a call that was made again at once has ended; True if that ends the trial.

        ``refused``: so often, one time after the other, or not at all.
        """
        self._recent.append(refused > 0)
        self._made += 1
        if not self.trying or (refused < IN_A_ROW and sum(self._recent) < FAILED):
            return False
        self.trying = False
        self._needed = FIRST_TRIAL if self._made >= LONG else 2 * self._needed
        self._isolated = self._made = 0
        self._recent.clear()
        return True
