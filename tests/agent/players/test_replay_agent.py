"""Recorded rollouts, played again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from small_task import InProcessModel, ScriptedUser, play, seeded, small_task, wants

from reward_kit.agent import TaskView, agent_eval, load_agent, load_user
from reward_kit.agent.players.agents.tool_calling import ToolCallingAgent
from reward_kit.errors import BundleError

BOOK = ("create_booking", {"flight_id": 1, "passenger": "Alice"})


async def recorded(folder: Path, answers: list[Any], lines: list[str], **options: Any) -> Any:
    players = {"user": ScriptedUser(lines), "models": {"agent": InProcessModel(answers)}}
    return await play(small_task(folder), ToolCallingAgent(), **players, **options)


def write(path: Path, finished: Any) -> Path:
    path.write_text(json.dumps(replace(finished.trace, user="scripted").to_json()))
    return path


async def test_a_replay_does_and_says_the_same(tmp_path: Path) -> None:
    answers = [
        wants(("search_flights", {"origin": "SFO", "dest": "JFK"}), BOOK, content="Let me see"),
        "Shall I?",
        wants(("create_booking", '{"flight_id": 1, "pass')),
        "Sorry",
    ]
    base = seeded(tmp_path)
    first = await recorded(tmp_path, answers, ["Yes", "Go on"], base=base, seed=3)
    spec = f"replay:{write(tmp_path / 'roll_a.json', first)}"
    again = await play(small_task(tmp_path), load_agent(spec)(), user=load_user(spec)(), base=base, seed=3)
    assert again.trace.messages == first.trace.messages
    assert again.trace.steps == first.trace.steps
    assert again.trace.stop_reason == first.trace.stop_reason == "user_stop"
    assert again.database.changes().equals(first.database.changes())
    assert [call.status for call in again.trace.tool_calls] == ["ok", "ok", "invalid_arguments"]
    assert again.trace.usage["agent"].calls == 0


@pytest.mark.parametrize("player", ["agent", "user"])
def test_recordings_are_not_used_twice_to_make_up_the_number(bundle: Bundle, player: str) -> None:
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 2})
    options = {"agent": "gold"}
    options[player] = f"replay:{agent_eval(bundle.dataset, **options).log_path}"
    assert agent_eval(bundle.dataset, **options).score == 1.0
    with pytest.raises(BundleError, match=r"9 rollouts asked for, recorded only 0, 1.* --n-rollouts 2"):
        agent_eval(bundle.dataset, n_rollouts=9, eval_id="more", **options)
    assert not Path("runs/evals/more.db").exists()


async def test_a_row_that_was_not_recorded_is_found_before_anything_runs(tmp_path: Path) -> None:
    source = write(tmp_path / "roll_a.json", await recorded(tmp_path, ["Hello"], []))
    source.write_text(source.read_text().replace('"row_id": "book"', '"row_id": "other"'))
    task = small_task(tmp_path)
    players: list[Any] = [load_agent(f"replay:{source}")(), load_user(f"replay:{source}")()]
    for player in players:
        with pytest.raises(BundleError, match="no rollout of row book"):
            player.check(task if hasattr(player, "sees_answers") else TaskView(task))


@pytest.mark.parametrize(
    ("text", "fault"),
    [("{", "is not JSON"), ('{"row_id": "a"}', "is a damaged trace of a rollout, or none")],
)
def test_a_faulty_recording_is_told(tmp_path: Path, text: str, fault: str) -> None:
    source = tmp_path / "roll_a.json"
    source.write_text(text)
    with pytest.raises(BundleError, match=fault):
        load_agent(f"replay:{source}")


def test_a_missing_or_empty_source_is_told(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot be read"):
        load_agent(f"replay:{tmp_path / 'missing.json'}")
    with pytest.raises(BundleError, match=r"Name a file, such as runs/evals/first\.db"):
        load_agent("replay:first")
    with pytest.raises(BundleError, match="no recorded rollouts"):
        load_agent(f"replay:{tmp_path}")


@pytest.mark.parametrize("name", ["first", "first.db"])
def test_the_file_of_a_missing_recording_is_named(name: str) -> None:
    with pytest.raises(BundleError) as caught:
        load_agent(f"replay:{name}")
    assert caught.value.remedy == f"Name a file, such as runs/evals/{name.removesuffix('.db')}.db"


TOOLS = """
from reward_kit.agent import ToolRegistry

R = ToolRegistry("dice")


@R.tool(parameters={})
async def roll(db):
    await db.execute("INSERT INTO rolls VALUES (1)")
    return await db.fetch_val("SELECT count(*) FROM rolls")


@R.tool(parameters={})
async def roll_twice(rollout):
    return [await rollout.call_tool("roll", {}) for _ in range(2)]
"""


def test_calls_that_a_tool_makes_itself_are_made_once_in_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("dice_task")
    folder.mkdir()
    (folder / "tools.py").write_text(TOOLS)
    (folder / "seed.sql").write_text("CREATE TABLE rolls (n INT);")
    said = [{"role": "user", "content": "Roll the dice twice."}]
    row = {
        "id": "a",
        "toolset": ".tools",
        "initial_messages": said,
        "end_goal_sql": "SELECT count(*) = 2 FROM rolls",
    }
    (folder / "task.jsonl").write_text(json.dumps(row))
    model = InProcessModel([wants(("roll_twice", {})), "Done."])
    first = agent_eval("dice_task", models={"agent": model})
    again = agent_eval("dice_task", agent=f"replay:{first.log_path}")
    for result in (first, again):
        (trace,) = result.records()
        assert (trace.reward, trace.stop_reason) == (1.0, "agent_done")
        assert [call.name for call in trace.tool_calls] == ["roll", "roll", "roll_twice"]
