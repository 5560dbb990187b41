"""Conversations in the formats of those who train on them."""

from typing import Any

import pytest

from reward_kit.agent.after.export import conversation

SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = {"role": "user", "content": "Seat 2, please."}
CALLED = {
    "role": "assistant",
    "content": None,
    "reasoning_content": "Seat 2 it is.",
    "prompt_token_ids": [1, 2],
    "tool_calls": [
        {
            "id": "call00001",
            "index": 0,
            "type": "function",
            "function": {"name": "take_seat", "arguments": '{"number": 2}', "parsed": {"number": 2}},
        }
    ],
}
ANSWERED = {"role": "tool", "tool_call_id": "call00001", "name": "take_seat", "content": "reserved"}
SAID = {"role": "assistant", "content": "Done.", "annotations": [], "refusal": None}
LEFT = {"role": "user", "content": "###STOP###"}
WHOLE = [SYSTEM, ASKED, CALLED, ANSWERED, SAID, LEFT]


def test_a_full_conversation_is_as_it_was_recorded() -> None:
    assert conversation(WHOLE, 2, "full") == WHOLE
    assert conversation([SYSTEM, ASKED], 2, "full") == [SYSTEM, ASKED]


def test_openai_gets_the_keys_that_it_knows_and_arguments_as_text() -> None:
    function = {"name": "take_seat", "arguments": '{"number": 2}'}
    call = {"id": "call00001", "type": "function", "function": function}
    assert conversation(WHOLE, 2, "openai") == [
        SYSTEM,
        ASKED,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call00001", "content": "reserved"},
        {"role": "assistant", "content": "Done."},
    ]


def test_chat_templates_get_arguments_as_objects_and_no_content_that_is_null() -> None:
    function = {"name": "take_seat", "arguments": {"number": 2}}
    call = {"id": "call00001", "type": "function", "function": function}
    details = [{"type": "reasoning.text", "text": "Seat 2 it is."}]
    of_others = {
        **CALLED,
        "reasoning_content": None,
        "reasoning": "Seat 2 it is.",
        "reasoning_details": details,
    }
    whole = [one if one is not CALLED else of_others for one in WHOLE]
    assert conversation(whole, 2, "trl") == conversation(WHOLE, 2, "trl")
    assert conversation(whole, 2, "openai") == conversation(WHOLE, 2, "openai")
    assert conversation(WHOLE, 2, "trl") == [
        SYSTEM,
        ASKED,
        {"role": "assistant", "content": "", "reasoning_content": "Seat 2 it is.", "tool_calls": [call]},
        ANSWERED,
        {"role": "assistant", "content": "Done."},
    ]


@pytest.mark.parametrize("layout", ["openai", "trl"])
def test_a_conversation_to_train_on_ends_with_the_agent(layout: Any) -> None:
    cut = conversation([ASKED, CALLED, ANSWERED], 1, layout)
    assert cut is not None
    assert [message["role"] for message in cut] == ["user", "assistant"]


@pytest.mark.parametrize("layout", ["openai", "trl"])
def test_nothing_is_to_be_learned_where_the_agent_said_nothing(layout: Any) -> None:
    assert conversation([ASKED], 1, layout) is None
    assert conversation([ASKED, SAID, LEFT], 3, layout) is None
    assert conversation([LEFT], 0, layout) is None


@pytest.mark.parametrize(("written", "layout", "expected"), [
    ({"number": 2}, "openai", '{"number": 2}'),
    ("no object", "trl", "no object"),
    ('{"number": 2}', "full", '{"number": 2}'),
])  # fmt: skip
def test_arguments_of_a_rows_messages_are_taken_as_they_are(written: Any, layout: Any, expected: Any) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "take_seat", "arguments": written}}
    lines = conversation([{"role": "assistant", "content": None, "tool_calls": [call]}, SAID], 1, layout)
    assert lines is not None
    assert lines[0]["tool_calls"][0]["function"]["arguments"] == expected
