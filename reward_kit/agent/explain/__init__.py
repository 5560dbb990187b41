"""A model's judgement of failed rollouts (``--explain``): who was at fault, how, and in one sentence why."""

from __future__ import annotations

from reward_kit.agent.explain.explainer import Explainer, make_explainer
from reward_kit.agent.explain.explanation import Explanation, Explanations

__all__ = ["Explainer", "Explanation", "Explanations", "make_explainer"]
