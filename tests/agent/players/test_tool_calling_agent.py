"""The agent that is a plain model with tool calling."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from small_task import play_answers, wants

talk = partial(play_answers, "tool-calling")


async def test_tools_run_in_the_order_they_were_asked_for(tmp_path: Path) -> None:
    first = wants(("create_booking", {"flight_id": 1, "passenger": "A"}), ("ping", {}), ids=["a", "b"])
    rollout = await talk(tmp_path, [first, "Done"])
    made = [(call.id, call.name, call.step) for call in rollout.tool_calls]
    assert made == [("a", "create_booking", 1), ("b", "ping", 1)]
    assert rollout.lines[-1].text == "Done"
    assert rollout.stop_reason == "agent_done"


async def test_only_the_first_call_counts_where_one_at_a_time_is_asked_for(tmp_path: Path) -> None:
    several = wants(("ping", {}), ("transfer", {}))
    rollout = await talk(tmp_path, [several, "Done"], parallel_tool_calls=False)
    assert [call.name for call in rollout.tool_calls] == ["ping"]
    assert len(rollout.messages[1]["tool_calls"]) == 1
    assert rollout.models["agent"].options[0]["parallel_tool_calls"] is False
    assert rollout.stop_reason == "agent_done"


async def test_reasoning_goes_back_to_the_model(tmp_path: Path) -> None:
    thinking = {**wants(("ping", {})), "reasoning_content": "hm", "thinking_blocks": [{"type": "thinking"}]}
    reply = {"role": "assistant", "content": "Done", "reasoning_content": "well"}
    rollout = await talk(tmp_path, [thinking, reply, "Bye"], lines=["More"])
    seen = rollout.models["agent"].seen[2]
    assert (seen[1]["reasoning_content"], seen[1]["thinking_blocks"]) == ("hm", [{"type": "thinking"}])
    assert seen[3]["reasoning_content"] == "well"


async def test_an_empty_answer_is_asked_for_again(tmp_path: Path) -> None:
    """Each time with another request: the same one would have the same answer."""
    rollout = await talk(tmp_path, ["", "  ", wants(("ping", {})), "", "Done"])
    assert rollout.lines[-1].text == "Done"
    assert rollout.steps == 5
    assert [message["role"] for message in rollout.messages] == ["user", "assistant", "tool", "assistant"]
    model = rollout.models["agent"]
    note = "\n\n(Your last answer to this was empty.)"
    assert [request[-1]["content"] for request in model.seen] == [
        *("Book me a flight", f"Book me a flight{note}", f"Book me a flight{note}"),
        *("pong", f"pong{note}"),
    ]
    first, second, third, after, again = (options["seed"] for options in model.options)
    assert len({first, second, third}) == 3
    assert (after, again) == (first, second)
    assert all(0 <= seed < 2**31 for seed in (second, third))


async def test_a_refusal_is_the_reply(tmp_path: Path) -> None:
    rollout = await talk(tmp_path, [{"role": "assistant", "content": None, "refusal": "I must not."}])
    assert rollout.messages[1:] == [{"role": "assistant", "content": "I must not."}]


async def test_a_message_goes_back_as_it_came(tmp_path: Path) -> None:
    details = [{"type": "reasoning.encrypted", "data": "ZW5j"}]
    thinking = {**wants(("ping", {})), "reasoning": "hm", "reasoning_details": details}
    thinking["tool_calls"][0]["extra_content"] = {"google": {"thought_signature": "s"}}
    reply = {"role": "assistant", "content": "Done", "reasoning": "", "encrypted_content": "ZW5j"}
    rollout = await talk(tmp_path, [thinking, reply, "Bye"], lines=["More"])
    details[0]["data"] = "changed later"
    sent = rollout.models["agent"].seen[2]
    assert sent[1] == {**thinking, "reasoning_details": [{"type": "reasoning.encrypted", "data": "ZW5j"}]}
    assert sent[3] == reply
    assert rollout.messages[1] == sent[1]


async def test_a_model_that_says_nothing_is_at_fault(tmp_path: Path) -> None:
    rollout = await talk(tmp_path, [{"role": "assistant", "content": None}])
    assert rollout.stop_reason == "agent_error"
    assert "neither text nor a tool call" in rollout.stop_detail
    assert rollout.steps == 3


@pytest.mark.parametrize(
    ("call", "status"),
    [
        ({"id": "a", "function": {"name": "ping", "arguments": None}}, "ok"),
        ({"id": "a", "function": {"name": "ping", "arguments": [1]}}, "invalid_arguments"),
        ({"id": "a", "function": None}, "unknown_tool"),
    ],
)
async def test_a_malformed_call_is_told_to_the_model(tmp_path: Path, call: Any, status: str) -> None:
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    rollout = await talk(tmp_path, [answer, "Done"])
    assert [made.status for made in rollout.tool_calls] == [status]
    assert rollout.models["agent"].seen[1][-1]["content"] == rollout.tool_calls[0].content
    assert rollout.stop_reason == "agent_done"


@pytest.mark.parametrize("said", ["<think>secret</think>\nDone", "secret</think>Done", "Done<think>secret"])
async def test_thoughts_in_the_text_are_kept_from_the_user(tmp_path: Path, said: str) -> None:
    answer = {"role": "assistant", "content": said, "reasoning_content": "well"}
    rollout = await talk(tmp_path, [answer], lines=[])
    assert rollout.lines[1].text == "Done"
    assert rollout.messages[1]["reasoning_content"] == "well\nsecret"
