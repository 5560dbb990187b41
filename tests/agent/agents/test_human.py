"""A person at the terminal, as agent and as user."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_task import ScriptedUser, play, small_task

from reward_kit.agent import load_agent, load_user
from reward_kit.agent.agents.human import Person


class Speaker:
    async def respond(self, rollout: Any) -> str:
        return f"Reply {rollout.turns}"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``typed("line", ...)`` puts lines into the keyboard; after them the input ends."""

    def give(*lines: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return give


async def test_a_person_calls_tools_and_replies(
    tmp_path: Path, typed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    typed(
        '/call create_booking {"flight_id": 1, "passenger": "Alice"}',
        "/call ping",
        "",
        "It is reserved",
        "Bye",
    )
    user = ScriptedUser(["And now?"])
    task = small_task(tmp_path, system_prompt="Sell seats.")
    rollout = (await play(task, load_agent("human")(), user=user)).rollout
    assert [call.status for call in rollout.tool_calls] == ["ok", "ok"]
    assert user.heard == ["It is reserved", "Bye"]
    assert rollout.stop_reason == "user_stop"
    shown = capsys.readouterr().out
    assert "user: Book me a flight" in shown
    assert "booking_id" in shown
    assert "user: And now?" in shown
    assert "agent: It is reserved" not in shown


async def test_a_person_can_look_at_tools_and_policy(
    tmp_path: Path, typed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    typed("/tools", "/policy", "/what", "/call", "Done")
    task = small_task(tmp_path, system_prompt="Sell seats.")
    rollout = (await play(task, load_agent("human")())).rollout
    shown = capsys.readouterr().out
    assert "create_booking(flight_id: " in shown
    assert "Sell seats." in shown
    assert shown.count("/call TOOL") == 3
    assert rollout.lines[-1].text == "Done"


async def test_a_person_plays_the_user(
    tmp_path: Path, typed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    typed("A seat, please", "  ", "Thanks ###STOP###")
    task = small_task(tmp_path, initial_messages=[], sim_user_prompt="You are Alice.")
    rollout = (await play(task, Speaker(), user=load_user("human")())).rollout
    assert [line.text for line in rollout.lines] == ["A seat, please", "Reply 1", "Thanks ###STOP###"]
    shown = capsys.readouterr().out
    assert "You are Alice." in shown
    assert "agent: Reply 1" in shown


async def test_a_user_that_leaves_ends_the_rollout(tmp_path: Path, typed: Any) -> None:
    typed("A seat, please")
    rollout = (await play(small_task(tmp_path), Speaker(), user=load_user("human")())).rollout
    assert rollout.stop_reason == "user_stop"
    assert rollout.turns == 2


@pytest.mark.parametrize("who", ["agent", "user"])
async def test_where_the_input_has_ended_no_more_rollouts_are_played(
    tmp_path: Path, typed: Any, who: str
) -> None:
    typed()
    agent = load_agent("human")() if who == "agent" else Speaker()
    user = load_user("human")() if who == "user" else ScriptedUser(["Well?"])
    finished = await play(small_task(tmp_path), agent, user=user)
    assert "the standard input has ended: nobody is there to play" in str(finished.setup_error)
    assert finished.reward is None


async def test_how_a_rollout_ended_is_told_once(
    tmp_path: Path, typed: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    typed("Hello", "A seat", "Which one?")
    await play(small_task(tmp_path), load_agent("human")(), user=load_user("human")(), max_steps=1)
    out = capsys.readouterr().out
    assert out.endswith("=== the rollout is over: max_steps (its only step is used up) ===\n")
    assert out.count("the rollout is over") == 1


@pytest.fixture
def keyboard(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A terminal as standard input; what is written to this file is typed there."""
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    with os.fdopen(slave) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield master
    os.close(master)


async def test_what_is_typed_after_a_rollout_ran_out_of_time_belongs_to_the_next(keyboard: int) -> None:
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(Person().typed("user> "), 0.05)
    os.write(keyboard, b"Seat 2, please\n")
    assert await asyncio.wait_for(Person().typed("user> "), 10) == "Seat 2, please"
