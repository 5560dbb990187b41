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
    rollout = await talk(tmp_path, ["", "  ", "Done"])
    assert rollout.lines[-1].text == "Done"
    assert rollout.steps == 3
    assert [message["role"] for message in rollout.messages] == ["user", "assistant"]


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
