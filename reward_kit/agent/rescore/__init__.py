"""Judging the rollouts of a finished evaluation again, by the bundle's reward as it is now.

No model is asked and no tool is run: the reward gets the stored databases and messages.
"""

from __future__ import annotations

from reward_kit.agent.rescore.judging import REWARD_TIMEOUT, rescore
from reward_kit.agent.rescore.rejudged import Rejudged, Rescoring

__all__ = ["REWARD_TIMEOUT", "Rejudged", "Rescoring", "rescore"]
