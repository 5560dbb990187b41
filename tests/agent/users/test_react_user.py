"""The simulated user that thinks before it speaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_task import InProcessModel, play, small_task

from reward_kit.agent import load_user
from reward_kit.agent.agents.tool_calling import ToolCallingAgent
from reward_kit.agent.users.react import labelled_draft

THOUGHT = "I keep my name back."


async def conversation(
    folder: Path, agent: list[Any], user: list[Any], **fields: Any
) -> tuple[Any, InProcessModel]:
    """Play an agent and a react user on in-process models; the rollout, and the user's model."""
    models = {"agent": InProcessModel(agent), "user": InProcessModel(user)}
    task = small_task(folder, **{"sim_user_prompt": "You are Alice.", **fields})
    finished = await play(task, ToolCallingAgent(), user=load_user("react")(), models=models)
    return finished.rollout, models["user"]


def written(line: str) -> str:
    return f"Thought:\n{THOUGHT}\n\nUser Response:\n{line}"


async def test_only_the_line_is_heard_and_the_thought_stays_with_the_user(tmp_path: Path) -> None:
    rollout, model = await conversation(
        tmp_path, ["Where to?", "Done"], [written("To JFK"), written("###STOP###")]
    )
    assert [line.text for line in rollout.lines] == [
        "Book me a flight",
        "Where to?",
        "To JFK",
        "Done",
        "###STOP###",
    ]
    assert THOUGHT not in str(rollout.messages)
    assert rollout.stop_reason == "user_stop"
    assert [message["content"] for message in model.seen[1][2:]] == [
        "User Response:\nBook me a flight",
        "Where to?",
        written("To JFK"),
        "Done",
    ]


async def test_the_form_is_asked_for_beside_the_part(tmp_path: Path) -> None:
    _, model = await conversation(tmp_path, ["Done"], [written("###STOP###")])
    system = model.seen[0][0]["content"]
    assert system.index("You are Alice.") < system.index("Thought:") < system.index("User Response:")


async def test_a_thought_alone_is_asked_again_and_paid(tmp_path: Path) -> None:
    rollout, _ = await conversation(tmp_path, ["Done"], [f"Thought: {THOUGHT}", written("###STOP###")])
    assert rollout.stop_reason == "user_stop"
    assert rollout.usage["user"].calls == 2
    assert rollout.usage["user"].cost == 1.0


async def test_a_stop_token_in_the_thought_does_not_stop(tmp_path: Path) -> None:
    thinking = "Thought: Soon I say ###STOP###.\nUser Response: And a meal, please."
    rollout, _ = await conversation(tmp_path, ["Done", "Noted"], [thinking, written("###STOP###")])
    assert [line.text for line in rollout.lines[2:]] == ["And a meal, please.", "Noted", "###STOP###"]


async def test_each_rollout_has_thoughts_of_its_own(tmp_path: Path) -> None:
    make = load_user("react")
    models = {"agent": InProcessModel(["Done"]), "user": InProcessModel([written("###STOP###")])}
    task = small_task(tmp_path, sim_user_prompt="You are Alice.")
    await play(task, ToolCallingAgent(), user=make(), models=models)
    (tmp_path / "base.db").unlink()
    await play(task, ToolCallingAgent(), user=make(), models=models)
    assert THOUGHT not in str(models["user"].seen[1])


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("Hi there", "Hi there"),
        ("Thought: hm\nUser Response: Hi", "Hi"),
        ("Thought:\nhm\n\nUser Response:\nHi\nI am Ann", "Hi\nI am Ann"),
        ("thought: hm\nuser response: Hi", "Hi"),
        ("**Thought:** hm\n**User Response:** Hi", "Hi"),
        ("**Thought**: hm\n\n**User Response**: Hi", "Hi"),
        ("### Thought:\nhm\n### User Response:\nHi", "Hi"),
        ("Thought: hm User Response: Hi", "Hi"),
        ("Thought: hm. **User Response:** Hi", "Hi"),
        ("Thought 1: hm\nThought 2: ah\nUser Response: Hi", "Hi"),
        ("Thought: hm\nUser Response:\nThought: ah\nUser Response: Hi", "Hi"),
        ("Thought: hm\nResponse: Hi", "Hi"),
        ("Thought: hm\nUser: Hi", "Hi"),
        ("User Response: Hi", "Hi"),
        ("User Response: Hi\nThought: now I wait", "Hi"),
        ("User Response: Hi. Thought: now I wait", "Hi."),
        ("User Response: Hi\nAgent: How may I help?\nUser Response: A seat", "Hi"),
        ("Hi\nThought: now I wait", "Hi"),
        ("I had better be brief.\nUser Response: Hi", "Hi"),
        ("<think>User Response: no</think>Thought: hm\nUser Response: Hi", "Hi"),
        ("Thought: hm\nUser Response: My note\nMessage: be quick", "My note\nMessage: be quick"),
        ("Thought: hm\nUser Response:\n```\nHi\n```", "Hi"),
        ("Thought: hm\nUser Response: On second thought: no", "On second thought: no"),
        ("Thought: hm\r\nUser Response: Hi\r\n", "Hi"),
        ("Thought: all is done.\n###STOP###", "###STOP###"),
        ("Thought: all is done, so I say ###STOP###", ""),
        ("Thought: hm", ""),
        ("Thought: hm\nUser Response:", ""),
        ("Thought: hm\nUser Response: **", ""),
        ("<think>hm", ""),
        ("", ""),
    ],
)
def test_the_line_is_found_in_whatever_form_it_comes(answer: str, line: str) -> None:
    assert labelled_draft(answer).line == line


@given(
    thought=st.text("abc .!", min_size=1), line=st.text("xyz .!#", min_size=1).filter(lambda t: t.strip(" #"))
)
def test_a_labelled_thought_never_gets_into_the_line(thought: str, line: str) -> None:
    assert labelled_draft(f"Thought: {thought}\nUser Response: {line}").line == line.strip()
