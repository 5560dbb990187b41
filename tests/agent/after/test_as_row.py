"""A played rollout as a row: which calls become gold actions, and which values become references."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import run_command

from reward_kit.agent import TaskBundle
from reward_kit.agent.after.as_row import row_of
from reward_kit.agent.rollout.episode import Episode

TOOLS = """
from reward_kit.agent import ToolRegistry

R = ToolRegistry("desk")


@R.tool
async def visits(patient: str, db) -> list:
    return await db.fetch_all("SELECT id, starts FROM visits WHERE patient = :p", {"p": patient})


@R.tool
async def book(patient: str, starts: str, db) -> dict:
    await db.execute("INSERT INTO visits(patient, starts) VALUES (:p, :s)", {"p": patient, "s": starts})
    return {"visit": {"id": await db.fetch_val("SELECT max(id) FROM visits")}}


@R.tool
async def book_silently(patient: str, starts: str, db) -> str:
    await db.execute("INSERT INTO visits(patient, starts) VALUES (:p, :s)", {"p": patient, "s": starts})
    return "booked"


@R.tool
async def bill(visit_ids: list[int], cents: int, db) -> str:
    code = await db.fetch_val("SELECT hex(randomblob(4))")
    await db.execute("INSERT INTO bills VALUES (:c, :v, :m)", {"c": code, "v": visit_ids[0], "m": cents})
    return code


@R.tool
async def pay(code: str, db) -> str:
    await db.execute("UPDATE bills SET cents = 0 WHERE code = :c", {"c": code})
    return "paid"


@R.tool(terminal=True)
async def hand_over(why: str) -> str:
    return "handed over"
"""
SEED = """
CREATE TABLE visits (id INTEGER PRIMARY KEY, patient TEXT, starts TEXT);
CREATE TABLE bills (code TEXT PRIMARY KEY, visit INTEGER, cents INTEGER);
INSERT INTO visits VALUES (500, 'Ada', '09:40');
"""
ROW = {"id": "a", "toolset": ".tools", "actions": [], "sim_user_prompt": "You are Ada.", "metadata": {"k": 1}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "desk_task"
    folder.mkdir()
    (folder / "tools.py").write_text(TOOLS)
    (folder / "seed.sql").write_text(SEED)
    (folder / "task.jsonl").write_text(json.dumps(ROW))
    return folder


@pytest.fixture
def episode(folder: Path) -> Iterator[Episode]:
    with TaskBundle.load(folder) as bundle, bundle.episode("a", rng_seed=7) as episode:
        yield episode


async def row_so_far(episode: Episode, *args: Any, **options: Any) -> dict[str, Any]:
    await episode.settle()
    return row_of(episode.trace, *args, **options)


def called(*calls: Any) -> list[dict[str, Any]]:
    return [{"name": name, "arguments": arguments} for name, arguments in calls]


async def test_reads_are_dropped_and_made_up_keys_become_references(folder: Path, episode: Episode) -> None:
    await episode.call("visits", {"patient": "Ada"})
    await episode.call("book", {"patient": "Ada", "starts": "10:00"})
    await episode.call("book", {"wrong": 1})
    await episode.call("bill", {"visit_ids": [501], "cents": 501})
    await episode.call("pay", {"code": episode.tool_calls[-1].content})
    row = await row_so_far(episode, "b")
    assert row == {**ROW, "id": "b", "actions": called(
        ("book", {"patient": "Ada", "starts": "10:00"}),
        ("bill", {"visit_ids": [{"$result": [0, "visit", "id"]}], "cents": 501}),
        ("pay", {"code": {"$result": [1]}}),
    )}  # fmt: skip
    (folder / "task.jsonl").write_text(json.dumps(row))
    checked = run_command("validate", folder)
    assert checked.code == 0, checked


async def test_a_read_that_told_a_made_up_key_is_kept(episode: Episode) -> None:
    await episode.call("book_silently", {"patient": "Ada", "starts": "10:00"})
    await episode.call("visits", {"patient": "Bo"})
    await episode.call("visits", {"patient": "Ada"})
    await episode.call("bill", {"visit_ids": [501], "cents": 3})
    assert (await row_so_far(episode))["actions"] == called(
        ("book_silently", {"patient": "Ada", "starts": "10:00"}),
        ("visits", {"patient": "Ada"}),
        ("bill", {"visit_ids": [{"$result": [1, 1, "id"]}], "cents": 3}),
    )


async def test_a_key_of_the_seed_stays_as_it_is(episode: Episode) -> None:
    await episode.call("visits", {"patient": "Ada"})
    await episode.call("bill", {"visit_ids": [500], "cents": 3})
    assert (await row_so_far(episode))["actions"] == called(("bill", {"visit_ids": [500], "cents": 3}))


async def test_the_call_that_ended_the_rollout_is_kept(episode: Episode) -> None:
    await episode.call("visits", {"patient": "Ada"})
    await episode.call("hand_over", {"why": "emergency"})
    assert (await row_so_far(episode))["actions"] == called(("hand_over", {"why": "emergency"}))


async def test_an_answer_becomes_outputs_and_the_users_lines_the_opening(episode: Episode) -> None:
    episode.history.say("user", {"role": "user", "content": "When is my visit?"})
    episode.history.say("user", {"role": "user", "content": "I am Ada, the 500th patient."})
    await episode.call("visits", {"patient": "Ada"})
    await episode.say("It is at 09:40.")
    like = {"id": "a", "toolset": ".tools"}
    assert await row_so_far(episode, "b", like=like) == {
        "id": "b",
        "toolset": ".tools",
        "initial_messages": [{"role": "user", "content": "When is my visit?\nI am Ada, the 500th patient."}],
        "actions": [],
        "outputs": ["09:40"],
    }
    assert (await row_so_far(episode, like={**like, "outputs": ["own"]}))["outputs"] == ["own"]
