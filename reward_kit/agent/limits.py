"""Where a rollout ends though nobody in it has ended it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Budget:
    """US dollars that many rollouts share; ``spent`` grows as models answer."""

    max_cost: float
    spent: float = 0.0

    @property
    def exhausted(self) -> bool:
        return self.spent >= self.max_cost


@dataclass(slots=True)
class RolloutLimits:
    """Where a rollout ends though nobody has ended it.

    ``max_steps`` overrides the row's; ``timeout`` is in seconds for the whole episode, ``reward_timeout`` for
    judging it. ``parallel_tool_calls=False`` asks models for one tool call at a time (a registry may do so as
    well).
    """

    max_steps: int | None = None
    timeout: float | None = None
    reward_timeout: float | None = 300.0
    budget: Budget | None = None
    parallel_tool_calls: bool = True
