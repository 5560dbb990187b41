"""Evaluations of the same rows beside each other: is one better, by how much, and on which rows.

Each row is compared with itself, so that how hard the rows are does not blur the difference.
"""

from __future__ import annotations

from reward_kit.agent.comparing.comparison import (
    BaselineComparison,
    EvaluationComparison,
    compare,
    compare_with,
)
from reward_kit.agent.comparing.measures import Measure
from reward_kit.agent.comparing.paired import PairedDifference, mean_difference
from reward_kit.agent.comparing.row_pairs import RowPair

__all__ = [
    "BaselineComparison",
    "EvaluationComparison",
    "Measure",
    "PairedDifference",
    "RowPair",
    "compare",
    "compare_with",
    "mean_difference",
]
