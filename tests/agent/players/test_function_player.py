"""Plain functions in the place of an agent or user."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small_task import InProcessModel, ScriptedUser, play, small_task, wants

from reward_kit.agent import load_agent, load_user
from reward_kit.agent.players.wrappers import FunctionPlayer

FUNCTIONS = """
import threading


async def waiting(rollout):
    booking = await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice"})
    return f"{booking} in {threading.current_thread() is threading.main_thread()}"


def blocking(rollout):
    booking = rollout.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice"})
    return f"{booking} in {threading.current_thread() is threading.main_thread()}"


def user(rollout):
    return "###STOP###" if rollout.turns else "Hello"


def factory():
    return Kept()


class Kept:
    async def respond(self, rollout):
        return "kept"

    async def method(self, rollout):
        return "from a method"


def optional(rollout, tone="kind"):
    return tone


def two(rollout, more):
    return "never"


KEPT = Kept()
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working directory."""
    name = f"functions_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize(("function", "in_main_thread"), [("waiting", True), ("blocking", False)])
async def test_what_a_function_returns_is_said(
    module: str, tmp_path: Path, function: str, in_main_thread: bool
) -> None:
    finished = await play(small_task(tmp_path), load_agent(f"{module}:{function}")())
    (call,) = finished.rollout.tool_calls
    assert call.status == "ok"
    assert finished.rollout.lines[-1].text == f"{call.content} in {in_main_thread}"
    assert finished.rollout.stop_reason == "agent_done"


async def test_a_function_may_be_the_user(module: str, tmp_path: Path) -> None:
    task = small_task(tmp_path, initial_messages=[])
    finished = await play(task, load_agent(f"{module}:factory")(), user=load_user(f"{module}:user")())
    assert [line.text for line in finished.rollout.lines] == ["Hello", "kept", "###STOP###"]


async def test_a_function_in_a_thread_asks_the_model(tmp_path: Path) -> None:
    model = InProcessModel([wants(("ping", {})), "Pong."])

    def agent(rollout: Any) -> Any:
        message = rollout.complete().message
        function = message["tool_calls"][0]["function"]
        assert rollout.call_tool(function["name"], function["arguments"]) == "pong"
        assert rollout.row_id == "book"
        return rollout.complete().message

    finished = await play(small_task(tmp_path), FunctionPlayer(agent), models={"agent": model})
    assert (finished.rollout.steps, finished.rollout.lines[-1].text) == (2, "Pong.")


@pytest.mark.parametrize("blocking", [True, False])
async def test_the_end_of_the_rollout_goes_through_what_catches_exceptions(
    tmp_path: Path, blocking: bool
) -> None:
    reached: list[str] = []

    def stubborn(rollout: Any) -> str:
        while True:
            try:
                rollout.call_tool("ping" if not reached else "transfer", {})
                reached.append("called")
            except Exception:  # noqa: BLE001 - an agent that swallows whatever it can
                reached.append("swallowed")

    async def patient(rollout: Any) -> str:
        while True:
            try:
                await rollout.call_tool("ping" if not reached else "transfer", {})
                reached.append("called")
            except Exception:  # noqa: BLE001 - an agent that swallows whatever it can
                reached.append("swallowed")

    finished = await play(small_task(tmp_path), FunctionPlayer(stubborn if blocking else patient))
    assert (finished.rollout.stop_reason, reached) == ("terminal_tool", ["called"])


async def test_what_a_function_raises_is_the_agents_fault(tmp_path: Path) -> None:
    def broken(rollout: Any) -> str:
        raise ValueError("no idea")

    finished = await play(small_task(tmp_path), FunctionPlayer(broken), user=ScriptedUser([]))
    assert finished.rollout.stop_reason == "agent_error"
    assert "no idea" in str(finished.rollout.stop_detail)
