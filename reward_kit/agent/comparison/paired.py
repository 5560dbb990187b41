"""Paired differences between two evaluations, with confidence intervals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.scoring.metrics import Interval

if TYPE_CHECKING:
    from collections.abc import Sequence

Verdict = Literal["better", "worse", "no difference"]
MIN_ROWS = 6
"""Rows that a two-sided sign test needs for p < 0.05: all of six agree by chance 2 times in 64 (p = 0.03),
all of five 2 times in 32."""

_NORMAL = 1.959963984540054
_FEW = {1: 12.706204736, 2: 4.302652730, 3: 3.182446305, 4: 2.776445105}


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean over ``rows`` of B minus A, with its 95 % interval (None with fewer than two rows).

    ``differing`` counts the rows in which the two are not equal.
    """

    value: float
    interval: Interval | None
    rows: int
    differing: int

    @property
    def too_few(self) -> bool:
        """Whether there are too few rows for a significant difference."""
        return self.rows < MIN_ROWS

    @property
    def verdict(self) -> Verdict:
        """Verdict on B by the interval; more is better."""
        if self.interval is not None and self.interval.low > 0:
            return "better"
        if self.interval is not None and self.interval.high < 0:
            return "worse"
        return "no difference"

    @property
    def clearness(self) -> float:
        """Distance from zero in half widths of the interval; above 1 if the interval excludes zero."""
        if self.interval is None or self.value == 0:
            return 0.0
        half = (self.interval.high - self.interval.low) / 2
        return abs(self.value) / half if half else math.inf

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; ``low`` and ``high`` are null without an interval."""
        low, high = self.interval or (None, None)
        return {
            "value": self.value,
            "low": low,
            "high": high,
            "rows": self.rows,
            "differing": self.differing,
        }


def mean_difference(differences: Sequence[float], *, most: float = math.inf) -> PairedDifference:
    """Average the rows' differences (B minus A), with a 95 % interval.

    The standard error is sqrt(sum((d - mean)^2) / (n - 1) / n) over the n rows: the paired one, clustered by
    row, of Miller 2024, "Adding Error Bars to Evals" (arXiv 2411.00640). The rollouts of a row, which are not
    independent, enter through their mean alone. The interval uses Student's t with n - 1 degrees of freedom,
    since the normal distribution is too narrow for few rows (Bowyer, Aitchison and Ivanova 2025,
    arXiv 2503.01747), and is clipped to ``most``, the largest possible difference, on both sides. Raises
    ``ValueError`` without rows, ``OverflowError`` if a difference or its square overflows.
    """
    rows = len(differences)
    if not rows:
        raise ValueError("no rows")
    if not all(map(math.isfinite, differences)):
        raise OverflowError("the numbers are too large")
    mean = math.fsum(differences) / rows
    differing = sum(difference != 0 for difference in differences)
    if rows == 1:
        return PairedDifference(mean, None, rows, differing)
    if all(difference == differences[0] for difference in differences):
        same = differences[0]  # exact, unlike the rounded sum
        return PairedDifference(same, Interval(same, same), rows, differing)
    variance = math.fsum((difference - mean) ** 2 for difference in differences) / (rows - 1)
    half = student_t(rows - 1) * math.sqrt(variance / rows)
    interval = Interval(max(-most, mean - half), min(most, mean + half))
    return PairedDifference(mean, interval, rows, differing)


def student_t(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t with ``freedom`` >= 1 degrees of freedom, to three decimals.

    From five on by the expansion of Fisher and Cornish (Abramowitz and Stegun 1964, 26.7.5).
    """
    if freedom in _FEW:
        return _FEW[freedom]
    z = _NORMAL
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    return math.fsum([z, *(term / float(freedom) ** power for power, term in enumerate(terms, start=1))])
