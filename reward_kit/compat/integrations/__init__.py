"""Bridges to other evaluation and training libraries, imported only when used."""

from __future__ import annotations

from .braintrust import reward_fn_to_scorer, scorer_to_reward_fn
from .openeval import adapt
from .trl import create_trl_adapter

__all__ = ["adapt", "create_trl_adapter", "reward_fn_to_scorer", "scorer_to_reward_fn"]
