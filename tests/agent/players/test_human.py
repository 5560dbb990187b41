"""A person at the terminal, as agent and as user."""

import io
from pathlib import Path
from typing import Any

import pytest
from small_task import ScriptedUser, play, small_task

from reward_kit.agent import load_agent, load_user


class Speaker:
    async def respond(self, rollout: Any) -> str:
        return f"Reply {rollout.turns}"


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``typed("line", ...)`` puts lines into the keyboard; after them the input ends."""

    def give(*lines: str) -> None:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return give


async def test_a_person_calls_and_replies(tmp_path: Path, typed: Any, capsys: Any) -> None:
    typed('/call create_booking {"flight_id": 1, "passenger": "Alice"}', "/call ping", "", "Booked", "Bye")
    user = ScriptedUser(["And now?"])
    task = small_task(tmp_path, system_prompt="Sell seats.")
    rollout = (await play(task, load_agent("human")(), user=user)).trace
    assert [call.status for call in rollout.tool_calls] == ["ok", "ok"]
    assert user.heard == ["Booked", "Bye"]
    assert rollout.stop_reason == "user_stop"
    shown = capsys.readouterr().out
    assert "user: Book me a flight" in shown
    assert "booking_id" in shown
    assert "user: And now?" in shown
    assert "agent: Booked" not in shown


async def test_a_person_can_look_at_tools_and_policy(tmp_path: Path, typed: Any, capsys: Any) -> None:
    typed("/tools", "/policy", "/what", "/call", "Done")
    task = small_task(tmp_path, system_prompt="Sell seats.")
    rollout = (await play(task, load_agent("human")())).trace
    shown = capsys.readouterr().out
    assert "create_booking(flight_id: " in shown
    assert "Sell seats." in shown
    assert shown.count("/call TOOL") == 3
    assert rollout.lines[-1].text == "Done"


async def test_a_person_is_the_user(tmp_path: Path, typed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    typed("A seat, please", "  ", "Thanks ###STOP###")
    task = small_task(tmp_path, initial_messages=[], sim_user_prompt="You are Alice.")
    rollout = (await play(task, Speaker(), user=load_user("human")())).trace
    assert [line.text for line in rollout.lines] == ["A seat, please", "Reply 1", "Thanks ###STOP###"]
    shown = capsys.readouterr().out
    assert "You are Alice." in shown
    assert "agent: Reply 1" in shown


@pytest.mark.parametrize("who", ["agent", "user"])
async def test_where_the_input_has_ended_no_more_is_played(tmp_path: Path, typed: Any, who: str) -> None:
    typed()
    agent = load_agent("human")() if who == "agent" else Speaker()
    user = load_user("human")() if who == "user" else ScriptedUser(["Well?"])
    finished = await play(small_task(tmp_path), agent, user=user)
    assert "the standard input has ended: nobody is there to play" in str(finished.refused)
    assert finished.trace.reward is None
