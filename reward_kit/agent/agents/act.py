"""The agent that acts without thinking aloud, in plain text."""

from __future__ import annotations

from reward_kit.agent.agents.text_agent import TextAgent


class ActAgent(TextAgent):
    """Each answer of the model is an action: ``react`` without its thoughts."""

    protocol = "act"
