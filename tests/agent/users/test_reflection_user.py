"""The simulated user that reflects on a refused line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from small_task import InProcessModel, play, small_task

from reward_kit.agent import load_user
from reward_kit.agent.agents.tool_calling import ToolCallingAgent

REFLECTION = "Reflection: there is no flight to Mars.\nResponse: JFK, please"


async def conversation(folder: Path, agent: list[Any], user: list[Any]) -> tuple[Any, InProcessModel]:
    """Play an agent and a reflection user on in-process models; the rollout, and the user's model."""
    models = {"agent": InProcessModel(agent), "user": InProcessModel(user)}
    task = small_task(folder, sim_user_prompt="You are Alice.")
    finished = await play(task, ToolCallingAgent(), user=load_user("reflection")(), models=models)
    return finished.rollout, models["user"]


def said(rollout: Any) -> list[str]:
    """The user's lines after the row's own."""
    return [line.text for line in rollout.lines[1:] if line.speaker == "user"]


async def test_an_accepted_draft_needs_no_reflection(tmp_path: Path) -> None:
    rollout, model = await conversation(tmp_path, ["Done"], ["###STOP###", "true"])
    assert said(rollout) == ["###STOP###"]
    assert len(model.seen) == 2


async def test_a_refused_draft_is_written_anew_with_the_reflection(tmp_path: Path) -> None:
    rollout, model = await conversation(
        tmp_path, ["Where to?", "Done"], ["To Mars", "false", REFLECTION, "JFK", "true", "###STOP###", "true"]
    )
    assert said(rollout) == ["JFK", "###STOP###"]
    assert "To Mars" in model.seen[2][0]["content"]
    redraft = model.seen[3][-1]["content"]
    assert redraft.startswith("Where to?")
    assert "To Mars" in redraft
    assert REFLECTION in redraft
    assert "Mars" not in str(model.seen[5:])
    assert rollout.usage["user"].calls == 7
    assert rollout.usage["user"].cost == 3.5


async def test_the_second_draft_is_said_even_if_it_is_refused(tmp_path: Path) -> None:
    answers = ["To Mars", "false", REFLECTION, "To Venus", "false", "###STOP###", "true"]
    rollout, _ = await conversation(tmp_path, ["Where to?", "Done"], answers)
    assert said(rollout) == ["To Venus", "###STOP###"]
