"""Reading what a model answers, however it writes it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_kit.agent.after.explainer import Judgement, read_verdict

PLAIN: dict[str, Any] = {"author": "agent", "fault": "wrong_tool", "sentence": "It cancelled."}
EXPECTED = Judgement("agent", "wrong_tool", "It cancelled.")


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(PLAIN),
        f"<think>Perhaps {{the user}}?</think>\n```json\n{json.dumps(PLAIN, indent=2)}\n```\nI am sure.",
        '{"Author": "AGENT.", "fault": "wrong-tool", "sentence": "It\\ncancelled."}',
        f'First {{"author": "user", "fault": "other", "sentence": "x"}}, no: {json.dumps(PLAIN)}',
        f'{json.dumps(PLAIN)} (in the form {{"author": "...", "fault": "...", "sentence": "..."}})',
    ],
)
def test_a_verdict_is_found_in_many_wrappings(text: str) -> None:
    assert read_verdict(text) == EXPECTED


@pytest.mark.parametrize("loop", ['{"', '{"a":', "{"])
def test_a_model_that_goes_round_in_circles_holds_nothing_up(loop: str) -> None:
    """Each brace costs a pass over the text behind it: all of these would take hours."""
    with pytest.raises(ValueError, match="the answer holds no JSON object"):
        read_verdict(loop * 30_000)
    if not loop.endswith('"'):
        assert read_verdict(f"{loop * 30_000} {json.dumps(PLAIN)}") == EXPECTED


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "no JSON object"),
        (json.dumps({**PLAIN, "author": "nobody"}), '"author" is none of user, agent, environment'),
        (json.dumps({**PLAIN, "fault": "bad"}), '"fault" is none of wrong_tool, '),
        (json.dumps({**PLAIN, "sentence": " "}), '"sentence" is missing'),
    ],
)
def test_an_unusable_answer_says_its_fault(text: str, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read_verdict(text)


@given(st.text(alphabet="{}[]:,\"'\\ aut\n", max_size=60))
def test_any_text_is_a_verdict_or_a_value_error(text: str) -> None:
    try:
        read_verdict(text)
    except ValueError:
        return
    raise AssertionError(text)
