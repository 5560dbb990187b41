"""One step of a rollout as reinforcement learning sees it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from reward_kit.models import Message  # noqa: TC001 - pydantic needs the class


class StepData(BaseModel):
    """What was seen, done and earned in one step; further fields may be added freely.

    ``step_info["assistant_turn_index"]`` is the index that a reward function's ``StepOutput`` refers to.
    ``base_reward`` is filled in from there, ``advantage`` and ``return_to_go`` by the training algorithm.
    """

    model_config = ConfigDict(extra="allow")

    system_step_index: int
    observation_data: Any
    action_taken: dict[str, Any]
    raw_policy_output: str | None = None
    resulting_messages_history: list[Message]
    policy_logprobs: dict[str, Any] | None = None
    policy_value_estimate: float | None = None
    is_done: bool = False
    step_info: dict[str, Any] = Field(default_factory=dict)
    base_reward: float | None = None
    advantage: float | None = None
    return_to_go: float | None = None
