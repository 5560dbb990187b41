"""Why a rollout failed, told without a model: the class, the first wrong step, and the rows that differ.

Pure functions of gold actions, tool calls, what was said, and how the rollout stopped: histories that were
imported from elsewhere, without a database, will do.
"""

from __future__ import annotations

from reward_kit.agent.failures.classify import classify_failure
from reward_kit.agent.failures.kinds import FAILURE_KINDS, ExpectedCall, Failure, FailureKind
from reward_kit.agent.failures.outputs import missing_outputs
from reward_kit.agent.failures.rows import RowDifference, row_differences

__all__ = [
    "FAILURE_KINDS",
    "ExpectedCall",
    "Failure",
    "FailureKind",
    "RowDifference",
    "classify_failure",
    "missing_outputs",
    "row_differences",
]
