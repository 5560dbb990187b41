"""The reason why a rollout failed, found without a model: class, first wrong step, differing rows.

Pure functions of gold actions, tool calls, replies and the stop reason; conversations that were imported
without a database will do.
"""

from __future__ import annotations

from reward_kit.agent.scoring.failures.alignment import ExpectedCall
from reward_kit.agent.scoring.failures.classify import (
    FAILURE_KINDS,
    Failure,
    FailureKind,
    classify_failure,
)
from reward_kit.agent.scoring.failures.rows import RowDifference, row_differences, row_line

__all__ = [
    "FAILURE_KINDS",
    "ExpectedCall",
    "Failure",
    "FailureKind",
    "RowDifference",
    "classify_failure",
    "row_differences",
    "row_line",
]
