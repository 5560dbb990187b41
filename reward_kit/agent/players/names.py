"""Names of agents and users: which are built in, which play a row, and which need a model.

Nothing here imports an agent, a user or a bundle.
"""

from __future__ import annotations

import inspect
import re
from functools import partial
from typing import TYPE_CHECKING, Any

from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from reward_kit.agent.rows.task_row import TaskRow

AGENTS = {
    "tool-calling": "reward_kit.agent.players.agents.tool_calling:ToolCallingAgent",
    "act": "reward_kit.agent.players.agents.text_agent:ActAgent",
    "react": "reward_kit.agent.players.agents.text_agent:ReactAgent",
    "few-shot": "reward_kit.agent.players.agents.few_shot:FewShotAgent",
    "gold": "reward_kit.agent.players.agents.gold:GoldAgent",
    "human": "reward_kit.agent.players.agents.human:HumanAgent",
    "fastworkflow": "reward_kit.agent.players.agents.fastworkflow.agent:FastWorkflowAgent",
}
USERS = {
    "llm": "reward_kit.agent.players.users.llm:LLMUser",
    "react": "reward_kit.agent.players.users.llm:ReactUser",
    "verify": "reward_kit.agent.players.users.llm:VerifyUser",
    "reflection": "reward_kit.agent.players.users.llm:ReflectionUser",
    "human": "reward_kit.agent.players.agents.human:HumanUser",
    "none": "reward_kit.agent.players.loading:no_user",
}
HTTP_AGENTS = "reward_kit.agent.players.agents.http_agent:HttpAgents"
NO_USER = "none"
WITHOUT_MODEL = frozenset({"fastworkflow", "gold", "human", NO_USER})
"""Agents and users that never ask a model of ours; a recording (``replay:``) and an address do not either."""
FROM_PROMPT = frozenset({"llm", "react", "verify", "reflection"})
"""Users that play the row's ``sim_user_prompt``: rows without one have no user then."""

_OWN = re.compile(r"(?!replay:)[\w.]+:[\w.()]+")


def is_own(spec: str) -> bool:
    """Return True for a person's own player: ``module:factory``, or what ``name_of`` makes of an object."""
    return _OWN.fullmatch(spec) is not None


def is_address(spec: str) -> bool:
    """Return True for an agent behind HTTP."""
    return spec.lower().startswith(("http://", "https://"))


def uses_model(spec: str) -> bool:
    """Return False for agents and users that never ask a model."""
    return spec not in WITHOUT_MODEL and not spec.lower().startswith("replay:") and not is_address(spec)


def user_of(row: TaskRow, agent: str, asked: str | None = None) -> str:
    """Return the user of a row; ``asked`` is the one named with ``--user``.

    By default a replay's is the recorded one and gold has none; any other agent gets ``llm`` if the row has a
    prompt for it.
    """
    if asked is None:
        asked = agent if agent.startswith("replay:") else NO_USER if agent == "gold" else "llm"
    return NO_USER if asked in FROM_PROMPT and not row.sim_user_prompt else asked


def name_of(given: Any) -> str:
    """Return the name in results of an agent or user given from Python; a name is itself.

    An object is called like its class with ``()`` after it, a ``partial`` like the function that it holds: no
    import finds those, so a resumed evaluation does not take another for it.
    """
    if isinstance(given, str):
        return given
    named, call = named_object(given)
    module = str(getattr(named, "__module__", None) or "__main__")
    for name, spec in (*AGENTS.items(), *USERS.items()):
        if spec == f"{module}:{call.removesuffix('()')}":
            return name
    if module == "replay":  # it would be taken for a recording
        raise UsageError(
            f"{call} is of a module named replay, which stands for recordings", remedy="Rename the module."
        )
    return re.sub(r"[^\w.]", "_", module) + ":" + re.sub(r"[^\w.()]", "_", call)


def named_object(given: Any) -> tuple[Any, str]:
    """Return the class or function that names ``given``, and ``Agent``, ``Agent()`` or ``Agent().play``."""
    if inspect.ismethod(given) and not inspect.isclass(given.__self__):
        named, call = named_object(given.__self__)
        return named, f"{call}.{given.__name__}"
    if inspect.isclass(given) or inspect.isroutine(given):
        return given, given.__qualname__.replace("<locals>.", "").replace("<lambda>", "lambda")
    named, call = named_object(given.func if isinstance(given, partial) else type(given))
    return named, f"{call}()"
