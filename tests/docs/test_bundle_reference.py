"""The bundle reference says what the code does."""

import json
import os
from dataclasses import MISSING
from pathlib import Path
from typing import Any

import pytest
from command import stand_in
from flight_bundle import GOLD, Bundle
from pages import ROOT, Block, blocks, run, table

from reward_kit.agent import agent_eval
from reward_kit.agent.bundles import source
from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.bundles.seed import folder_source
from reward_kit.agent.rows.field_checks import MAX_ID_LENGTH
from reward_kit.agent.rows.task_row import KNOWN_FIELDS, TaskRow

PAGE = ROOT / "docs" / "bundle.md"
REFERENCE = PAGE.read_text()


def block(language: str, containing: str) -> str:
    (found,) = [each.text for each in blocks(PAGE) if each.language == language and containing in each.text]
    return found


def test_the_table_of_fields_has_every_field_with_its_default() -> None:
    documented: dict[str, Any] = {}
    for name, _, default, _ in table(REFERENCE.split("### Fields")[1].replace("`", "")):
        documented[name] = default if default == "required" else json.loads(default) if default else None
    actual = {name: "required" if default is MISSING else default for name, default in KNOWN_FIELDS.items()}
    assert documented == actual
    assert list(documented) == list(actual)


def test_the_limits_are_the_documented_ones() -> None:
    assert f"at most {MAX_ID_LENGTH}" in REFERENCE
    assert f"{source.MAX_FILES:,}".replace(",", " ") in REFERENCE
    assert f"more than {source.MAX_BYTES >> 30} GiB" in REFERENCE


def test_the_row_with_a_reference_is_accepted() -> None:
    assert TaskRow.from_json(json.loads(block("json", "$result"))).id == "flight.1"


def test_the_seed_script_and_the_reward_work_in_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "my_task"
    folder.mkdir()
    (folder / "seed.py").write_text(block("python", "SEED_FILES"))
    (folder / "reward.py").write_text(block("python", "def evaluate"))
    (folder / "tools.py").write_text(
        "from reward_kit.agent import ToolRegistry\n"
        "R = ToolRegistry('users')\n"
        "@R.tool(description='Add', parameters={'name': str})\n"
        "async def add(name, db):\n"
        "    await db.execute('INSERT INTO users VALUES (1, :n)', {'n': name})\n"
    )
    actions = [{"name": "add", "arguments": {"name": "Ann"}}]
    row = {"id": "flight.1", "toolset": "my_task.tools", "sim_user_prompt": "You are Ann."}
    (folder / "task.jsonl").write_text(json.dumps({**row, "actions": actions}))
    monkeypatch.chdir(tmp_path)
    exec(compile(block("python", "validate(bundle)"), "bundle.md", "exec"), {})
    assert "['flight.1']\nTrue [" in capsys.readouterr().out
    with TaskBundle.load("my_task") as bundle:
        assert bundle.tasks[0].seed.key == folder_source(folder).at().key


def test_a_task_done_by_hand_becomes_the_documented_row(tmp_path: Path) -> None:
    stand_in(tmp_path)
    commands = Block("bash", "", block("bash", "--save-row lend.3"))
    output = run(commands, tmp_path, {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
    for line in block("text", "lend.3").splitlines():
        assert line in output, output
    row = json.loads((tmp_path / "library_task/task.jsonl").read_text().splitlines()[-1])
    assert row["actions"] == [{"name": "lend_book", "arguments": {"book_id": 3, "member": "Ada"}}]


def test_a_reward_that_asks_a_model_is_counted(bundle: Bundle, monkeypatch: Any, stub_llm: Any) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", stub_llm.url)
    bundle.write("reward.py", block("python", "count_usage"))
    bundle.rows({"reward": "flight_task.reward:polite", "actions": GOLD, "n_rollouts": 1})
    stub_llm.script("gpt-4o-mini", ["Yes."])
    result = agent_eval(str(bundle.dataset), agent="gold")
    judge = result.usage["judge"]
    assert (result.score, judge.calls, judge.unpriced_calls) == (1.0, 1, 0)
    assert judge.cost == pytest.approx(0.15e-6 * judge.input_tokens + 0.6e-6 * judge.output_tokens)
    assert judge.input_tokens > 0
