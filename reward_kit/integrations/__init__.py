"""Bridges to other evaluation and training libraries; none of them is needed to import this."""

from __future__ import annotations

from reward_kit.integrations.braintrust import reward_fn_to_scorer, scorer_to_reward_fn
from reward_kit.integrations.openeval import adapt
from reward_kit.integrations.trl import create_trl_adapter

__all__ = ["adapt", "create_trl_adapter", "reward_fn_to_scorer", "scorer_to_reward_fn"]
