"""Compare evaluations of the same rows: paired differences with intervals, row by row."""

from __future__ import annotations

from reward_kit.agent.compare.comparison import (
    BaselineComparison,
    EvaluationComparison,
    compare,
    compare_with,
)
from reward_kit.agent.compare.measures import Measure
from reward_kit.agent.compare.paired import PairedDifference, mean_difference
from reward_kit.agent.compare.row_pairs import RowPair

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
