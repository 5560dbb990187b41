"""The agent that thinks before each action, in plain text."""

from __future__ import annotations

from reward_kit.agent.agents.text_agent import TextAgent


class ReactAgent(TextAgent):
    """Each answer of the model is a thought and an action (Yao et al. 2023, ReAct, arXiv 2210.03629)."""

    protocol = "react"
