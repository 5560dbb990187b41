"""States of gold actions that later evaluations use again."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from command import run_command

from reward_kit.agent import EvaluationResult, agent_eval, load_rollout
from reward_kit.agent.evaluation import row_states

TOOLS = """
from pathlib import Path
from reward_kit.agent import ToolRegistry

R = ToolRegistry("notes")

@R.tool
async def write(text: str, db) -> str:
    with open("calls.txt", "a") as calls:
        calls.write(text + "\\n")
    await db.execute("INSERT INTO notes VALUES (1, ?, 2.0, x'00')", [text])
    return "written"

@R.tool
async def draw(db) -> str:
    await db.execute("INSERT INTO notes VALUES (2, random(), 0, 0)")
    return "drawn"
"""
REWARD = """
from reward_kit import EvaluateResult, reward_function

@reward_function
def evaluate(messages, *, db, gold_db, **kwargs):
    notes = "SELECT * FROM notes"
    equal = db.equals(gold_db) and gold_db.fetch_all(notes) == db.fetch_all(notes)
    return EvaluateResult(score=float(equal), reason="")
"""
ROW = (
    '{"id": "row", "toolset": "notes_task.tools", "initial_messages": [{"role": "user", "content": "Go."}],'
    ' "actions": [{"name": "%s", "arguments": %s}]}\n'
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "notes_task"
    folder.mkdir()
    (folder / "tools.py").write_text(TOOLS)
    (folder / "reward.py").write_text(REWARD)
    (folder / "seed.sql").write_text("CREATE TABLE notes (id INTEGER PRIMARY KEY, text, number, bytes);")
    (folder / "task.jsonl").write_text(ROW % ("write", '{"text": "one"}'))
    return folder


def evaluate(folder: Path, **options: Any) -> EvaluationResult:
    return agent_eval(folder / "task.jsonl", agent="gold", **options)


def calls(folder: Path) -> int:
    """The calls of the tool ``write`` since the last time."""
    file = folder.parent / "calls.txt"
    made = len(file.read_text().splitlines())
    file.unlink()
    return made


def gold_of(result: EvaluationResult) -> Any:
    """What is stored of the gold actions, as rows and as a database."""
    query = "SELECT gold_calls, gold_changes, gold_state FROM rows"
    with sqlite3.connect(result.results_path.with_suffix(".db")) as connection:
        stored = connection.execute(query).fetchall()
    with load_rollout(result.folder / result.outcomes[0].file) as rollout:
        gold = rollout.reward_arguments()["gold_db"]
        return stored, gold.changes(), gold.fetch_all("SELECT * FROM notes")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_later_evaluation_calls_no_tool_for_the_gold_actions(folder: Path, workers: int) -> None:
    first = evaluate(folder, workers=workers)
    assert calls(folder) == 2, "the gold actions, and the agent that does the same"
    second = evaluate(folder, workers=workers)
    assert calls(folder) == 1, "the agent's own call"
    assert first.score == second.score == 1.0
    assert gold_of(first) == gold_of(second)


def test_another_row_with_the_same_actions_finds_them_and_other_actions_do_not(folder: Path) -> None:
    evaluate(folder)
    calls(folder)
    row = ROW % ("write", '{"text": "one"}')
    other = (ROW % ("write", '{"text": "two"}')).replace('"row"', '"other"')
    (folder / "task.jsonl").write_text(row.replace('"row"', '"renamed"') + other)
    evaluate(folder)
    assert calls(folder) == 3


def test_a_row_that_was_closed_for_others_is_not_replayed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(row_states.MOST_OPEN, "overlay", 0)
    evaluate(folder, n_rollouts=3, max_concurrency=1)
    assert calls(folder) == 4, "the gold actions once, and the agent three times"


@pytest.mark.parametrize("name", ["tools.py", "prices.json", "seed.sql"])
def test_a_changed_file_of_the_bundle_has_them_replayed(folder: Path, name: str) -> None:
    evaluate(folder)
    calls(folder)
    with (folder / name).open("a") as file:
        file.write("\n")
    evaluate(folder)
    assert calls(folder) == 2


def test_they_are_replayed_after_clear_cache(folder: Path) -> None:
    evaluate(folder)
    calls(folder)
    evaluate(folder, clear_cache=True)
    assert calls(folder) == 2


def test_clear_cache_removes_a_damaged_file(folder: Path) -> None:
    evaluate(folder)
    (folder.parent / "runs" / ".cache" / "gold.db").write_bytes(b"noise" * 4000)
    evaluate(folder, clear_cache=True)
    calls(folder)
    evaluate(folder)
    assert calls(folder) == 1


def test_actions_that_draw_random_numbers_are_not_kept(folder: Path) -> None:
    (folder / "task.jsonl").write_text(ROW % ("draw", "{}"))
    assert evaluate(folder).score == evaluate(folder).score == 1.0
    assert not (folder.parent / "runs" / ".cache" / "gold.db").exists() or not _kept(folder)


def test_tools_from_elsewhere_are_not_kept(folder: Path) -> None:
    (folder.parent / "elsewhere.py").write_text(TOOLS)
    (folder / "tools.py").write_text("from elsewhere import R\n")
    evaluate(folder)
    evaluate(folder)
    assert calls(folder) == 4


@pytest.mark.parametrize("damage", ["file", "state"])
def test_a_damaged_file_is_a_warning_and_a_replay(
    folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    evaluate(folder)
    calls(folder)
    path = folder.parent / "runs" / ".cache" / "gold.db"
    if damage == "file":
        path.write_bytes(os.urandom(8192))
    else:
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE gold SET state = x'00'")
    assert evaluate(folder).score == 1.0
    assert calls(folder) == 2
    (warning,) = (record.message for record in caplog.records if "gold.db" in record.message)
    assert "they are replayed" in warning


def test_validation_replays_them(folder: Path) -> None:
    evaluate(folder)
    calls(folder)
    run_command("agent-eval", "-d", str(folder / "task.jsonl"), "--validate-only")
    assert calls(folder) > 1


def _kept(folder: Path) -> int:
    with sqlite3.connect(folder.parent / "runs" / ".cache" / "gold.db") as connection:
        (count,) = connection.execute("SELECT count(*) FROM gold").fetchone()
    return int(count)
