"""The smallest difference of Pass^1 that an evaluation of some rows and rollouts can show.

The mean difference of two agents over n rows with k rollouts each has the variance (Miller 2024, "Adding
Error Bars to Evals", arXiv 2411.00640, on power)::

    these tasks        (w_A + w_B) / (n k)              w = m (1 - m) - s^2, the mean of p (1 - p)
    tasks like these   that + 2 s^2 (1 - r) / n + (m^2 + (1 - m)^2) / (n + 1)^2

The rates p of the rows have mean m, nearer to 1/2 by the difference in B, and in both the standard deviation
s, with correlation r. The last term is the further row that the intervals for tasks like these assume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist, covariance, fmean
from typing import TYPE_CHECKING

from reward_kit.agent.scoring.intervals import RowCounts

if TYPE_CHECKING:
    from collections.abc import Sequence

CORRELATION = 0.8
"""Assumed if there is one evaluation: agents find much the same rows hard."""


@dataclass(frozen=True, slots=True)
class RowRates:
    """Success rates of rows: their mean, standard deviation, and correlation between two agents."""

    mean: float
    spread: float
    correlation: float = CORRELATION

    def smallest_difference(
        self, rows: int, rollouts: int, power: float
    ) -> tuple[float | None, float | None]:
        """The differences shown with this ``power`` at 5 %: on these tasks, and on tasks like these.

        The standard error times the sum of the normal quantiles of the power and of 97.5 %. None if the rates
        leave no room for such a difference.
        """
        quantiles = NormalDist().inv_cdf(power) + NormalDist().inv_cdf(0.975)
        between = 2 * self.spread**2 * (1 - self.correlation) / rows
        between += (self.mean**2 + (1 - self.mean) ** 2) / (rows + 1) ** 2
        found: list[float | None] = []
        for variance in (0.0, between):
            low, high = 0.0, max(self.mean, 1 - self.mean)
            room = high >= quantiles * math.sqrt(variance + self._within(high) / (rows * rollouts))
            for _ in range(40):  # the variance within B's rows depends on the difference
                size = (low + high) / 2
                enough = size >= quantiles * math.sqrt(variance + self._within(size) / (rows * rollouts))
                low, high = (low, size) if enough else (size, high)
            found.append(high if room else None)
        return found[0], found[1]

    def smallest_margin(self, rows: int, rollouts: int, power: float) -> float:
        """The margin within which equal agents are shown to be, with this ``power``, on these tasks.

        Two one-sided tests at 5 %: the standard error times the sum of the normal quantiles of 95 % and of
        (1 + power) / 2.
        """
        quantiles = NormalDist().inv_cdf(0.95) + NormalDist().inv_cdf((1 + power) / 2)
        number = 2 * rollouts  # of a row in both evaluations; estimated as in sequential.decide
        spread = self._within(0.0) / 2
        jeffreys = (number * (number * spread + 0.5) + 0.25) / ((number + 1) * (number + 2))
        return quantiles * math.sqrt(2 * max(spread, jeffreys) / (rows * rollouts))

    def _within(self, difference: float) -> float:
        other = self.mean + math.copysign(difference, 0.5 - self.mean)
        return sum(max(mean * (1 - mean) - self.spread**2, 0.0) for mean in (self.mean, other))


def row_rates(
    counts: Sequence[tuple[int, int]], other: Sequence[tuple[int, int]] | None = None
) -> RowRates | None:
    """Estimate the rates from each row's ``(n, c)``, and those of another evaluation of the same rows.

    The correlation is that of the rows' rates with the variance of rollouts taken out. None without two rows,
    or if no row has two rollouts: the spread of rows could not be told from chance.
    """
    sides = [counts] if other is None else [counts, other]
    if len(counts) < 2 or any(max(n for n, _ in side) < 2 for side in sides):
        return None
    rates = [[c / n for n, c in side] for side in sides]
    means = [fmean(side) for side in rates]
    fitted = [RowCounts(side).prior for side in sides]
    variances = [mean * (1 - mean) / (a + b + 1) for mean, (a, b) in zip(means, fitted, strict=True)]
    found = RowRates(fmean(means), math.sqrt(fmean(variances)))
    if other is None or min(variances) == 0:
        return found
    ratio = covariance(*rates) / math.sqrt(math.prod(variances))
    return replace(found, correlation=min(max(ratio, 0.0), 1.0))
