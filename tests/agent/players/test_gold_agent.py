"""The agent that knows the ground truth."""

from pathlib import Path

import pytest
from small_task import BOOKED, play, small_task

from reward_kit.agent.players.agents.replay import GoldAgent
from reward_kit.errors import BundleError


async def test_it_says_the_outputs_rather_than_hand_over(tmp_path: Path) -> None:
    actions = [{"name": "transfer", "arguments": {}}, {"name": "ping", "arguments": {}}]
    finished = await play(small_task(tmp_path, actions=actions, outputs=["12"]), GoldAgent())
    assert finished.trace.lines[-1].text == "12"
    assert [call.name for call in finished.trace.tool_calls] == ["ping"]


async def test_a_refused_call_does_not_stop_it(tmp_path: Path) -> None:
    create, pay = BOOKED
    refused = {"name": "pay_booking", "arguments": {"booking_id": "none"}}
    actions = [refused, create, {**pay, "arguments": {"booking_id": {"$result": [1, "booking_id"]}}}]
    finished = await play(small_task(tmp_path, actions=actions), GoldAgent())
    assert [call.status for call in finished.trace.tool_calls] == ["refused", "ok", "ok"]
    assert (finished.trace.reward, finished.trace.stop_reason) == (1.0, "agent_done")


async def test_a_reference_to_nothing_is_told(tmp_path: Path) -> None:
    actions = [{"name": "ping", "arguments": {}}, BOOKED[1]]
    rollout = (await play(small_task(tmp_path, actions=actions), GoldAgent())).trace
    assert rollout.stop_reason == "infrastructure_error"
    assert "booking_id" in (rollout.stop_detail or "")


def test_a_row_without_ground_truth_is_found_before_anything_runs(tmp_path: Path) -> None:
    GoldAgent().check(small_task(tmp_path, actions=[]))
    with pytest.raises(BundleError, match="book has no actions"):
        GoldAgent().check(small_task(tmp_path))
