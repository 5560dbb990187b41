"""Rewards to build on (docs/rewards.md): checks, three ways to combine them, and the default reward."""

from reward_kit.agent.rewards.checks import (
    all_of,
    calls_made,
    checks_hold,
    database_equal,
    missing_outputs,
    outputs_said,
    product_of,
    rules_kept,
    said_to_user,
    weighted_sum,
)
from reward_kit.agent.rewards.criteria import criteria_met
from reward_kit.agent.rewards.default import evaluate
from reward_kit.agent.rewards.made_up_ids import database_equal_up_to_ids

__all__ = [
    "all_of",
    "calls_made",
    "checks_hold",
    "criteria_met",
    "database_equal",
    "database_equal_up_to_ids",
    "evaluate",
    "missing_outputs",
    "outputs_said",
    "product_of",
    "rules_kept",
    "said_to_user",
    "weighted_sum",
]
