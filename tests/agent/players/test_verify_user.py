"""The simulated users whose lines are judged before they are said, and the one that reflects on a refusal."""

from typing import Any

import pytest

from reward_kit.agent.players.users.llm import verdict

USER = "verify"


def said(rollout: Any) -> list[str]:
    """The user's lines after the row's own."""
    return [line.text for line in rollout.lines[1:] if line.speaker == "user"]


async def test_an_accepted_draft_is_said_and_the_judge_sees_who_said_what(conversation: Any) -> None:
    rollout, model = await conversation(["Where to?", "Done"], ["JFK", "true", "###STOP###", "true"])
    assert said(rollout) == ["JFK", "###STOP###"]
    assert rollout.usage["user"].calls == 4
    assert rollout.usage["user"].cost == 2.0
    answers = [call.answer for call in rollout.model_calls if call.role == "user"]
    assert answers == ["JFK", "true", "###STOP###", "true"]
    (question,) = model.seen[3]
    assert question["role"] == "user"
    assert "Book me a flight\n\nAgent: Where to?\n\nCustomer: JFK\n\nAgent: Done" in question["content"]
    assert "<line>\n###STOP###\n</line>" in question["content"]
    assert "You are Alice {and} you want a seat." in question["content"]
    assert model.tools == [None] * 4


async def test_a_refused_draft_is_never_said_and_later_not_shown(conversation: Any) -> None:
    rollout, model = await conversation(
        ["Where to?", "Done"], ["To Mars", "False.", "JFK", "True.", "###STOP###", "true"]
    )
    assert said(rollout) == ["JFK", "###STOP###"]
    assert "To Mars" in model.seen[2][-1]["content"]
    assert "Mars" not in str(model.seen[4:])
    assert "Mars" not in str(rollout.messages)
    assert [message["role"] for message in model.seen[2]] == [message["role"] for message in model.seen[0]]


REFLECTION = "Reflection: there is no flight to Mars.\nResponse: JFK, please"


async def test_a_refused_draft_is_written_anew_with_the_reflection(conversation: Any) -> None:
    answers = ["To Mars", "false", REFLECTION, "JFK", "true", "###STOP###", "true"]
    rollout, model = await conversation(["Where to?", "Done"], answers, "reflection")
    assert said(rollout) == ["JFK", "###STOP###"]
    assert "To Mars" in model.seen[2][0]["content"]
    redraft = model.seen[3][-1]["content"]
    assert redraft.startswith("Where to?")
    assert "To Mars" in redraft
    assert REFLECTION in redraft
    assert "Mars" not in str(model.seen[5:])
    assert (rollout.usage["user"].calls, rollout.usage["user"].cost) == (7, 3.5)


@pytest.mark.parametrize(
    ("strategy", "answers", "line"),
    [
        ("verify", ["A", "false", "B", "no", "C", "false", "###STOP###", "true"], "C"),
        ("reflection", ["A", "false", REFLECTION, "B", "false", "###STOP###", "true"], "B"),
    ],
)
async def test_if_all_are_refused_the_last_draft_is_said(
    conversation: Any, strategy: str, answers: list[str], line: str
) -> None:
    rollout, model = await conversation(["Where to?", "Done"], answers, strategy)
    assert said(rollout) == [line, "###STOP###"]
    assert len(model.seen) == len(answers)


@pytest.mark.parametrize(
    ("answer", "good"),
    [
        ("true", True),
        ("Yes, it fits.", True),
        ("false", False),
        ("False, it is not true to the part", False),
        ("The line is not true to the part.", False),
        ("It says true things about the order.\nVerdict: false", False),
        ("Reasoning: nothing is false here. Answer: true", True),
        ("", True),
    ],
)
def test_a_verdict_is_read_in_whatever_form_it_comes(answer: str, good: bool) -> None:
    assert verdict(answer) is good
