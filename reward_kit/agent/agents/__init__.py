"""Agents under test: the protocol, and how one is found by name (``--agent``) or taken as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from reward_kit.agent.plugins import load_factory, own_factory

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.completion import Message
    from reward_kit.agent.rollout import Rollout

BUILT_IN = {
    "tool-calling": "reward_kit.agent.agents.tool_calling:ToolCallingAgent",
    "act": "reward_kit.agent.agents.act:ActAgent",
    "react": "reward_kit.agent.agents.react:ReactAgent",
    "few-shot": "reward_kit.agent.agents.few_shot:FewShotAgent",
    "gold": "reward_kit.agent.agents.gold:GoldAgent",
    "human": "reward_kit.agent.agents.human:HumanAgent",
    "fastworkflow": "reward_kit.agent.agents.fastworkflow.agent:FastWorkflowAgent",
}
REPLAY = "reward_kit.agent.agents.replay:ReplayAgent"


class Agent(Protocol):
    """One turn of an agent: call tools through the rollout, then return what to say to the user.

    A ``dict`` is returned where the whole assistant message must be kept (reasoning that a provider wants
    back). An agent is made anew for each rollout, so it may keep state. Optional extras:

    - ``check(self, task: Task) -> None`` is called for each task before any rollout, and raises
      ``BundleError`` where the agent cannot play it;
    - ``needs_model = True`` says that it cannot do without ``--model``;
    - ``interactive = True`` says that a person at the terminal takes part, so that rollouts run one by one;
    - ``async def close(self)`` is called when its rollout is over, before the reward;
    - ``configured(config, tasks)``, a class method, is called once per evaluation and returns the factory to
      use: something callable, which may have ``async def open(self)`` and ``async def close(self)`` for what
      its agents share (processes, connections). ``open`` raises a ``RewardKitError`` for what a person must
      mend.
    """

    async def respond(self, rollout: Rollout) -> str | Message: ...


def load_agent(spec: str | Agent | Callable[..., Any]) -> Callable[[], Agent]:
    """A maker of agents for ``spec``: a built-in name, ``module:factory``, ``replay:PATH``, or an address; or
    the class, the factory, the function of a rollout or the agent itself, which then plays all rollouts.

    Raises ``BundleError`` for an unknown name, a module that does not import, a faulty recording, or what is
    no agent.
    """
    if not isinstance(spec, str):
        return own_factory(spec, "agent")
    if spec.lower().startswith(("http://", "https://")):
        from reward_kit.agent.agents.http_agent import HttpAgents

        return HttpAgents(spec)
    factory: Callable[[], Agent] = load_factory(spec, kind="agent", built_in=BUILT_IN, replay=REPLAY)
    return factory
