"""How often calls get no answer, or a server's error, though the provider is neither down nor overloaded."""

from __future__ import annotations

import math

MEMORY = 64
"""Attempts of which the share of those that failed is known; older ones count ever less."""
FEW = 0.1
"""Share of failed attempts that is no reason to call less often: making them again costs little."""
EXPECTED = 0.03
"""Share that is thought to fail by chance until more do."""
TOLERABLE, ALARMING = 1, 2
"""So many more failed attempts in a row than by chance: one is no such reason either, two may mean that the
provider is down. With none under way that is the third in a row."""
DEVIATIONS = 3.0
"""Standard deviations by which more must fail in a row than do by chance."""


class Misses:
    """Learns which share of attempts fails, to tell a fault of many from one that happens now and then."""

    __slots__ = ("_share", "_usual", "in_a_row")

    def __init__(self) -> None:
        self.in_a_row = 0
        self._share = 0.0
        self._usual = 0.0

    def answered(self) -> None:
        """An attempt has its answer."""
        self.in_a_row = 0
        self._share -= self._share / MEMORY
        self._usual = self._share

    def missed(self) -> None:
        """An attempt has failed."""
        self.in_a_row += 1
        self._share += (1.0 - self._share) / MEMORY

    def few(self, under_way: int) -> bool:
        """Whether so few attempts fail that it is best to go on as before; ``under_way`` are still to end."""
        return self._usual <= FEW and self.in_a_row <= TOLERABLE + self._by_chance(under_way)

    def too_many(self, under_way: int) -> bool:
        """Whether so many have failed in a row that the provider may be down."""
        return self.in_a_row >= ALARMING + self._by_chance(under_way)

    def _by_chance(self, under_way: int) -> float:
        """How many may fail in a row by chance: a bound for the binomial distribution, by the normal one.

        Those ``under_way`` count, too, since errors are mostly quicker than answers.
        """
        attempts = self.in_a_row + under_way
        share = max(self._usual, EXPECTED)
        return attempts * share + DEVIATIONS * math.sqrt(attempts * share * (1.0 - share))
