"""How many calls a provider may have at once, found out by asking."""

from __future__ import annotations

import math

START = 16
"""Calls at once before anything is known. Doubling, 500 are reached after five answers' time."""
RESTART = 2
"""Calls at once after a pause."""
STEP = 1 / 20
"""Part by which the number grows in an answer's time where it has been too high before; at least one."""


class Concurrency:
    """A number between 1 and ``ceiling`` that grows with good answers and shrinks with refusals.

    It doubles in an answer's time until the first refusal, then up to where the last refusal left it, and
    grows by ``STEP`` from there. A call notes the ``generation`` when it is sent: refusals of calls
    that were sent before the number shrank say nothing of the new number.
    """

    __slots__ = ("_known", "ceiling", "generation", "limit")

    def __init__(self, ceiling: int) -> None:
        self.ceiling = float(ceiling)
        self.limit = min(float(START), self.ceiling)
        self.generation = 0
        self._known = math.inf

    def grow(self, generation: int) -> None:
        """A good answer came to a call of ``generation``, and there was no room for more calls."""
        if generation != self.generation or self.limit >= self.ceiling:
            return
        step = 1.0 if self.limit < self._known else max(1.0, self.limit * STEP) / self.limit
        self.limit = min(self.ceiling, self.limit + step)

    def shrink(self, generation: int, factor: float, under_way: int) -> bool:
        """A call of ``generation`` was refused; False if that has been answered for already."""
        if generation != self.generation:
            return False
        self.generation += 1
        self.limit = max(1.0, min(self.limit, under_way) * factor)
        self._known = self.limit
        return True

    def restart(self) -> None:
        """Begin with few calls again, up to what was possible before."""
        self.limit = min(self.limit, float(RESTART))
