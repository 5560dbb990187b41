"""Agents under test: the protocol of an agent, and the built-in ones, one module per strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.rollout import Rollout


class Agent(Protocol):
    """One turn of an agent: call tools through the rollout, then return what to say to the user.

    A ``dict`` is returned if the whole assistant message must be kept (reasoning that a provider wants back).
    An agent is made anew for each rollout, so it may keep state. Optional extras:

    - ``check(self, task: TaskView) -> None`` is called for each task before any rollout, and raises
      ``BundleError`` if the agent cannot play it;
    - ``needs_model = True`` says that it cannot do without ``--model``;
    - ``interactive = True`` says that a person at the terminal takes part, so that rollouts run one by one;
    - ``async def close(self)`` is called when its rollout is over, before the reward;
    - ``configured(config, tasks)``, a class method, is called once per evaluation with the ``TaskView`` of
      each task and returns the factory to use: something callable, which may have ``async def open(self)``
      and ``async def close(self)`` for what its agents share (processes, connections). ``open`` raises a
      ``RewardKitError`` for what a person must fix.
    - ``sees_answers = True`` is for agents that replay the ground truth or a recording: ``check`` and
      ``configured`` get the whole ``Task``, and ``self.episode`` is the episode before the first turn.
    """

    async def respond(self, rollout: Rollout) -> str | Message: ...
