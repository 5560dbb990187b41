"""The simulated user that thinks before it speaks."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_kit.agent.players.users.llm import ReactUser

USER = "react"

THOUGHT = "I keep my name back."


def written(line: str) -> str:
    return f"Thought:\n{THOUGHT}\n\nUser Response:\n{line}"


async def test_only_the_line_is_heard_and_the_thought_stays_with_the_user(conversation: Any) -> None:
    rollout, model = await conversation(["Where to?", "Done"], [written("To JFK"), written("###STOP###")])
    spoken = ["Book me a flight", "Where to?", "To JFK", "Done", "###STOP###"]
    assert [line.text for line in rollout.lines] == spoken
    assert THOUGHT not in str(rollout.messages)
    assert rollout.stop_reason == "user_stop"
    heard = ["User Response:\nBook me a flight", "Where to?", written("To JFK"), "Done"]
    assert [message["content"] for message in model.seen[1][2:]] == heard


async def test_a_thought_alone_is_asked_again_and_paid(conversation: Any) -> None:
    rollout, _ = await conversation(["Done"], [f"Thought: {THOUGHT}", written("###STOP###")])
    assert rollout.stop_reason == "user_stop"
    assert rollout.usage["user"].calls == 2
    assert rollout.usage["user"].cost == 1.0


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("Hi there", "Hi there"),
        ("Thought: hm\nUser Response: Hi", "Hi"),
        ("Thought:\nhm\n\nUser Response:\nHi\nI am Ann", "Hi\nI am Ann"),
        ("**Thought:** hm\n**User Response:** Hi", "Hi"),
        ("Thought: hm User Response: Hi", "Hi"),
        ("Thought: hm\nUser Response:\nThought: ah\nUser Response: Hi", "Hi"),
        ("Thought: hm\nResponse: Hi", "Hi"),
        ("User Response: Hi", "Hi"),
        ("User Response: Hi\nThought: now I wait", "Hi"),
        ("User Response: Hi\nAgent: How may I help?\nUser Response: A seat", "Hi"),
        ("I had better be brief.\nUser Response: Hi", "Hi"),
        ("<think>User Response: no</think>Thought: hm\nUser Response: Hi", "Hi"),
        ("Thought: hm\nUser Response: My note\nMessage: be quick", "My note\nMessage: be quick"),
        ("Thought: all is done.\n###STOP###", "###STOP###"),
        ("Thought: all is done, so I say ###STOP###", ""),
        ("Thought: hm", ""),
        ("Thought: hm\nUser Response:", ""),
    ],
)
def test_the_line_is_found_in_whatever_form_it_comes(answer: str, line: str) -> None:
    assert ReactUser().read(answer).line == line


@given(
    thought=st.text("abc .!", min_size=1), line=st.text("xyz .!#", min_size=1).filter(lambda t: t.strip(" #"))
)
def test_a_labelled_thought_never_gets_into_the_line(thought: str, line: str) -> None:
    assert ReactUser().read(f"Thought: {thought}\nUser Response: {line}").line == line.strip()
