"""Recording, counting and ending of a rollout."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from small_task import InProcessModel, ScriptedUser, Speaker, hanging, play, small_task, wants

from reward_kit.agent.players.agents.tool_calling import ToolCallingAgent


def contents(rollout: Any) -> list[tuple[str, Any]]:
    return [(message["role"], message["content"]) for message in rollout.messages]


async def test_the_agent_answers_and_the_user_ends_it(tmp_path: Path) -> None:
    task = small_task(tmp_path, system_prompt="Be kind")
    finished = await play(task, Speaker("Where to?", "Booked"), user=ScriptedUser(["New York"]))
    rollout = finished.trace
    assert contents(rollout) == [
        ("system", "Be kind"),
        ("user", "Book me a flight"),
        ("assistant", "Where to?"),
        ("user", "New York"),
        ("assistant", "Booked"),
        ("user", "###STOP###"),
    ]
    assert (rollout.stop_reason, rollout.turns, rollout.steps) == ("user_stop", 2, 2)


async def test_calls_are_recorded_with_the_rows_they_changed(tmp_path: Path) -> None:
    async def book(rollout: Any) -> str:
        found = await rollout.call_tool("search_flights", {"origin": "SFO", "dest": "LAX"})
        assert found == '[{"id": 2, "seats": 1}]'
        await rollout.call_tool("create_booking", '{"flight_id": 2, "passenger": "Bob"}')
        return "Booked"

    rollout = (await play(small_task(tmp_path), Speaker(book))).trace
    search, booking = rollout.tool_calls
    assert (search.status, search.changes, search.index, search.turn) == ("ok", [], 0, 1)
    assert booking.arguments == {"flight_id": 2, "passenger": "Bob"}
    assert [(change["table"], change["op"]) for change in booking.changes] == [("bookings", "insert")]
    assert (booking.step, booking.index) == (2, 1)
    roles = [message["role"] for message in rollout.messages]
    assert roles == ["user", *["assistant", "tool"] * 2, "assistant"]
    assert rollout.messages[1]["tool_calls"][0]["id"] == rollout.messages[2]["tool_call_id"] == search.id


async def test_an_unknown_tool_and_faulty_arguments_are_reported_to_the_agent(tmp_path: Path) -> None:
    answers: list[str] = []

    async def stumble(rollout: Any) -> str:
        for name, arguments in (("fly", {}), ("create_booking", "{"), ("create_booking", {"flight_id": "x"})):
            answers.append(await rollout.call_tool(name, arguments))
        return "Sorry"

    rollout = (await play(small_task(tmp_path), Speaker(stumble))).trace
    assert all(answer.startswith("Error: ") for answer in answers)
    statuses = [call.status for call in rollout.tool_calls]
    assert statuses == ["unknown_tool", "invalid_arguments", "invalid_arguments"]
    assert rollout.tool_calls[1].arguments == "{"


async def test_a_terminal_tool_ends_it_at_once(tmp_path: Path) -> None:
    model = InProcessModel([wants(("ping", {}), ("transfer", {}), ("ping", {}))])
    task, models = small_task(tmp_path), {"agent": model}
    finished = await play(task, ToolCallingAgent(), user=ScriptedUser([]), models=models)
    rollout = finished.trace
    assert (rollout.stop_reason, rollout.stop_detail) == ("terminal_tool", "transfer")
    assert [call.name for call in rollout.tool_calls] == ["ping", "transfer"]
    assert [content for role, content in contents(rollout) if role == "tool"] == [
        "pong",
        "Transferred",
        "Error: not run, the rollout had ended.",
    ]


async def test_a_call_left_running_is_undone_before_the_reward(tmp_path: Path) -> None:
    left: list[asyncio.Task[Any]] = []

    async def careless(rollout: Any) -> str:
        left.append(await hanging(rollout.call_tool("hang", {})))
        return "Done"

    finished = await play(small_task(tmp_path), Speaker(careless))
    assert left[0].cancelled()
    assert await finished.database.fetch_val("SELECT COUNT(*) FROM flights") == 2
    assert finished.trace.tool_calls[0].content.startswith("Error: stopped while it ran")


async def test_time_runs_out_in_the_middle_of_a_call(tmp_path: Path) -> None:
    async def hang(rollout: Any) -> str:
        return str(await rollout.call_tool("hang", {}))

    finished = await play(small_task(tmp_path), Speaker(hang), timeout=1.0)
    rollout = finished.trace
    assert (rollout.stop_reason, rollout.stop_detail) == ("timeout", "not over after 1 s")
    assert await finished.database.fetch_val("SELECT COUNT(*) FROM flights") == 2
    assert [call.status for call in rollout.tool_calls] == ["failed"]
    assert rollout.messages[-1]["role"] == "tool"
    assert finished.trace.reward == 0.0


@pytest.mark.parametrize("reply", [None, 7, "", "  \n", {"content": ""}, {"content": None}])
async def test_a_reply_that_says_nothing_is_the_agents_fault(tmp_path: Path, reply: Any) -> None:
    finished = await play(small_task(tmp_path), Speaker(reply), user=ScriptedUser([]))
    assert finished.trace.stop_reason == "agent_error"
    assert finished.trace.stop_detail is not None
    assert finished.trace.reward == 0.0


async def test_a_reply_cannot_smuggle_tool_calls(tmp_path: Path) -> None:
    reply = {**wants(("ping", {})), "content": "Done"}
    rollout = (await play(small_task(tmp_path), Speaker(reply))).trace
    assert rollout.stop_reason == "agent_error"
    assert "call_tool" in (rollout.stop_detail or "")
