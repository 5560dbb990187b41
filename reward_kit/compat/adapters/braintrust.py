"""``reward_kit.integrations.braintrust`` under its earlier name."""

from __future__ import annotations

from ..integrations.braintrust import reward_fn_to_scorer, scorer_to_reward_fn

__all__ = ["reward_fn_to_scorer", "scorer_to_reward_fn"]
