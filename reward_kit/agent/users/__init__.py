"""Users that talk to the agent: the protocol, and how one is found by name (``--user``) or taken as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from reward_kit.agent.plugins import load_factory, own_factory

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.bundles.task_row import TaskRow
    from reward_kit.agent.rollout import Rollout

BUILT_IN = {
    "llm": "reward_kit.agent.users.llm:LLMUser",
    "react": "reward_kit.agent.users.react:ReactUser",
    "verify": "reward_kit.agent.users.verify:VerifyUser",
    "reflection": "reward_kit.agent.users.reflection:ReflectionUser",
    "human": "reward_kit.agent.users.human:HumanUser",
    "none": "reward_kit.agent.users.none:no_user",
}
REPLAY = "reward_kit.agent.users.replay:ReplayUser"
FROM_PROMPT = frozenset({"llm", "react", "verify", "reflection"})
"""Users whose whole part is the row's ``sim_user_prompt``: without one they have none."""


class User(Protocol):
    """The user's next line; the stop token ``###STOP###`` anywhere in it ends the rollout.

    A user is made anew for each rollout, so it may keep state. The optional extras are those of an ``Agent``.
    """

    async def respond(self, rollout: Rollout) -> str: ...


def load_user(spec: str | User | Callable[..., Any]) -> Callable[[], User | None]:
    """A maker of users: a built-in name (``none`` makes None), ``module:factory``, or ``replay:PATH``; or the
    class, the factory, the function of a rollout or the user itself, which then plays in all rollouts.

    Raises ``BundleError`` for an unknown name, a module that does not import, a faulty recording, or what is
    no user.
    """
    if not isinstance(spec, str):
        return own_factory(spec, "user")
    factory: Callable[[], User | None] = load_factory(spec, kind="user", built_in=BUILT_IN, replay=REPLAY)
    return factory


def user_of(row: TaskRow, agent_spec: str, asked: str | None) -> str:
    """The user of a row where ``asked`` is asked for, or none in particular (None)."""
    if asked is None:
        return default_user(row, agent_spec)
    return "none" if asked in FROM_PROMPT and not row.sim_user_prompt else asked


def default_user(row: TaskRow, agent_spec: str) -> str:
    """The user where none is asked for.

    A replay's is the recorded one; gold needs none; any other agent gets ``llm`` if the row has a prompt for
    it.
    """
    if agent_spec.startswith("replay:"):
        return agent_spec
    if agent_spec == "gold" or not row.sim_user_prompt:
        return "none"
    return "llm"
