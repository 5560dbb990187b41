"""A conversation with a simulated user, on in-process models."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from small_task import InProcessModel, play, small_task

from reward_kit.agent import load_user
from reward_kit.agent.players.agents.tool_calling import ToolCallingAgent

Conversation = Callable[..., Awaitable[tuple[Any, InProcessModel]]]


@pytest.fixture
def conversation(request: pytest.FixtureRequest, tmp_path: Path) -> Conversation:
    """Play answers of agent and user, ``name`` or the module's ``USER``; the rollout, the user's model."""

    async def run(
        agent: list[Any], user: list[Any], name: str = "", *, guard_user: bool = False, **fields: Any
    ) -> tuple[Any, Any]:
        models = {"agent": InProcessModel(agent), "user": InProcessModel(user)}
        task = small_task(tmp_path, **{"sim_user_prompt": "You are Alice {and} you want a seat.", **fields})
        made = load_user(name or request.module.USER)()
        finished = await play(task, ToolCallingAgent(), user=made, models=models, guard_user=guard_user)
        return finished.trace, models["user"]

    return run
