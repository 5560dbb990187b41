"""Answers of models, kept on disk: the same evaluation run again asks no model.

Off unless it is asked for (``--cache``): several rollouts of a task measure how much an agent's luck varies,
and an answer that comes back unasked would hide that.
"""

from __future__ import annotations

from reward_kit.agent.model_cache.answer_store import AnswerStore
from reward_kit.agent.model_cache.cached_model import CachedModel, cached_models, models_of_rollout

__all__ = ["AnswerStore", "CachedModel", "cached_models", "models_of_rollout"]
