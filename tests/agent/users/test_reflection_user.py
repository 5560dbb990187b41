"""The simulated user that reflects on a refused line."""

from __future__ import annotations

from typing import Any

USER = "reflection"

REFLECTION = "Reflection: there is no flight to Mars.\nResponse: JFK, please"


def said(rollout: Any) -> list[str]:
    """The user's lines after the row's own."""
    return [line.text for line in rollout.lines[1:] if line.speaker == "user"]


async def test_an_accepted_draft_needs_no_reflection(conversation: Any) -> None:
    rollout, model = await conversation(["Done"], ["###STOP###", "true"])
    assert said(rollout) == ["###STOP###"]
    assert len(model.seen) == 2


async def test_a_refused_draft_is_written_anew_with_the_reflection(conversation: Any) -> None:
    rollout, model = await conversation(
        ["Where to?", "Done"], ["To Mars", "false", REFLECTION, "JFK", "true", "###STOP###", "true"]
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


async def test_the_second_draft_is_said_even_if_it_is_refused(conversation: Any) -> None:
    answers = ["To Mars", "false", REFLECTION, "To Venus", "false", "###STOP###", "true"]
    rollout, _ = await conversation(["Where to?", "Done"], answers)
    assert said(rollout) == ["To Venus", "###STOP###"]
