"""Plain functions in the place of an agent or user."""

from pathlib import Path
from typing import Any

from small_task import InProcessModel, ScriptedUser, play, small_task, wants

from reward_kit.agent.players.wrappers import FunctionPlayer


async def test_a_function_in_a_thread_asks_the_model(tmp_path: Path) -> None:
    model = InProcessModel([wants(("ping", {})), "Pong."])

    def agent(rollout: Any) -> Any:
        message = rollout.complete().message
        function = message["tool_calls"][0]["function"]
        assert rollout.call_tool(function["name"], function["arguments"]) == "pong"
        assert rollout.row_id == "book"
        return rollout.complete().message

    finished = await play(small_task(tmp_path), FunctionPlayer(agent), models={"agent": model})
    assert (finished.trace.steps, finished.trace.lines[-1].text) == (2, "Pong.")


async def test_the_end_of_the_rollout_goes_through_what_catches_exceptions(tmp_path: Path) -> None:
    reached: list[str] = []

    def stubborn(rollout: Any) -> str:
        while True:
            try:
                rollout.call_tool("ping" if not reached else "transfer", {})
                reached.append("called")
            except Exception:  # noqa: BLE001 - an agent that swallows whatever it can
                reached.append("swallowed")

    finished = await play(small_task(tmp_path), FunctionPlayer(stubborn))
    assert (finished.trace.stop_reason, reached) == ("terminal_tool", ["called"])


async def test_what_a_function_raises_is_the_agents_fault(tmp_path: Path) -> None:
    finished = await play(small_task(tmp_path), FunctionPlayer(lambda rollout: 1 // 0), user=ScriptedUser([]))
    assert finished.trace.stop_reason == "agent_error"
    assert "ZeroDivisionError" in str(finished.trace.stop_detail)


async def test_a_function_that_gives_a_coroutine_is_asynchronous(tmp_path: Path) -> None:
    """A lambda, or what a decorator made, of an ``async def`` function."""

    async def agent(rollout: Any, reply: str) -> str:
        return f"{await rollout.call_tool('ping', {})}, {reply}"

    player = FunctionPlayer(lambda rollout: agent(rollout, "said"))
    finished = await play(small_task(tmp_path), player, user=ScriptedUser(["And?"]))
    assert [line.text for line in finished.trace.lines if line.speaker == "agent"] == ["pong, said"] * 2
    assert len(finished.trace.tool_calls) == 2
