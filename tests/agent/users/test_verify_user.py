"""The simulated user whose lines are judged before they are said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_task import InProcessModel, play, small_task

from reward_kit.agent import load_user
from reward_kit.agent.agents.tool_calling import ToolCallingAgent
from reward_kit.agent.users.verify import verdict


async def conversation(
    folder: Path, agent: list[Any], user: list[Any], **fields: Any
) -> tuple[Any, InProcessModel]:
    """Play an agent and a verify user on in-process models; the rollout, and the user's model."""
    models = {"agent": InProcessModel(agent), "user": InProcessModel(user)}
    task = small_task(folder, **{"sim_user_prompt": "You are Alice.", **fields})
    finished = await play(task, ToolCallingAgent(), user=load_user("verify")(), models=models)
    return finished.rollout, models["user"]


def said(rollout: Any) -> list[str]:
    """The user's lines after the row's own."""
    return [line.text for line in rollout.lines[1:] if line.speaker == "user"]


async def test_an_accepted_draft_is_said_and_the_judging_is_paid(tmp_path: Path) -> None:
    rollout, _ = await conversation(tmp_path, ["Where to?", "Done"], ["JFK", "true", "###STOP###", "true"])
    assert said(rollout) == ["JFK", "###STOP###"]
    assert rollout.usage["user"].calls == 4
    assert rollout.usage["user"].cost == 2.0
    assert [call.answer for call in rollout.model_calls if call.role == "user"] == [
        "JFK",
        "true",
        "###STOP###",
        "true",
    ]


async def test_the_judge_sees_who_said_what(tmp_path: Path) -> None:
    _, model = await conversation(tmp_path, ["Where to?", "Done"], ["JFK", "true", "###STOP###", "true"])
    (question,) = model.seen[3]
    assert question["role"] == "user"
    assert (
        "Customer: Book me a flight\n\nAgent: Where to?\n\nCustomer: JFK\n\nAgent: Done"
        in question["content"]
    )
    assert "<line>\n###STOP###\n</line>" in question["content"]
    assert "You are Alice." in question["content"]
    assert model.tools == [None] * 4


async def test_a_refused_draft_is_never_said_and_later_not_shown(tmp_path: Path) -> None:
    rollout, model = await conversation(
        tmp_path, ["Where to?", "Done"], ["To Mars", "False.", "JFK", "True.", "###STOP###", "true"]
    )
    assert said(rollout) == ["JFK", "###STOP###"]
    assert "To Mars" in model.seen[2][-1]["content"]
    assert "Mars" not in str(model.seen[4:])
    assert "Mars" not in str(rollout.messages)
    assert [message["role"] for message in model.seen[2]] == [message["role"] for message in model.seen[0]]


async def test_if_all_are_refused_the_last_draft_is_said(tmp_path: Path) -> None:
    drafts = ["A", "false", "B", "no", "C", "false", "###STOP###", "true"]
    rollout, model = await conversation(tmp_path, ["Where to?", "Done"], drafts)
    assert said(rollout) == ["C", "###STOP###"]
    assert len(model.seen) == 8


async def test_leaving_too_early_can_be_refused(tmp_path: Path) -> None:
    rollout, _ = await conversation(
        tmp_path, ["Where to?", "Done"], ["###STOP###", "false", "JFK", "true", "###STOP###", "true"]
    )
    assert said(rollout) == ["JFK", "###STOP###"]


@pytest.mark.parametrize(
    ("answer", "good"),
    [
        ("true", True),
        ("True.", True),
        ("**TRUE**", True),
        ("Yes, it fits.", True),
        ("false", False),
        ("False, it is not true to the part", False),
        ("`false`", False),
        ("No", False),
        ("The line is not true to the part.", False),
        ("It says true things about the order.\nVerdict: false", False),
        ("Reasoning: nothing is false here. Answer: true", True),
        ("", True),
        ("I cannot judge this.", True),
        ("nothing to say", True),
    ],
)
def test_a_verdict_is_read_in_whatever_form_it_comes(answer: str, good: bool) -> None:
    assert verdict(answer) is good
