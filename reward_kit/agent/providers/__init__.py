"""What stands between many rollouts and a provider: how many calls at once, how many a minute, and when not.

A ``Gate`` belongs to one provider at one address, and to one evaluation; ``Gates`` are all that an evaluation
has. Models that answer in process need none.
"""

from __future__ import annotations

from reward_kit.agent.providers.gate import Gate
from reward_kit.agent.providers.gates import Gates
from reward_kit.agent.providers.visit import Visit

__all__ = ["Gate", "Gates", "Visit"]
