"""Control characters of a bundle are shown, not sent to the terminal; other text stays as it is."""

import re
from pathlib import Path
from typing import Any

import pytest
from command import Command, new_python
from flight_bundle import GOLD, SEED, TOOLS, Bundle

from reward_kit.agent.players.agents.human import Terminal

FOREIGN = "\x1b]0;title\x07\x1b[2J\u202e\x9b31m\x7f\r"
SHOWN = r"\u001b]0;title\u0007\u001b[2J\u202e\u009b31m\u007f\u000d"
HARMLESS = "Zürich 東京駅 \U0001f468\u200d\U0001f469\u200d\U0001f467 नमस्ते"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
FILL = """
@R.tool(parameters={})
def fill(db):
    name = db.execute("SELECT name FROM sqlite_master ORDER BY rowid DESC LIMIT 1").scalar_one()
    db.execute(f"INSERT INTO [{name}] VALUES (1, char(27) || char(155) || char(8238))")
"""
VALIDATE = ("-d", "task.jsonl", "--validate-only")


def test_faults_of_a_bundle_are_shown_without_control_characters(bundle: Bundle, agent_eval: Any) -> None:
    bundle.write("tools.py", f"raise ValueError({FOREIGN + HARMLESS!r})")
    ran = agent_eval(*VALIDATE, PYTHONUTF8="1")
    text = ran.out + ran.err
    assert ran.code == 2
    assert RAW.search(text) is None
    assert SHOWN.removesuffix(r"\u000d") in text
    assert HARMLESS in text


@pytest.fixture
def changed(bundle: Bundle, agent_eval: Command) -> Path:
    """A database in which a table of a foreign name has changed."""
    table = f"[\x1b(0\x07\u202e\x9b{HARMLESS}]"
    bundle.write("seed.sql", f"{SEED}CREATE TABLE {table}(id INTEGER PRIMARY KEY, v);\n")
    bundle.write("tools.py", TOOLS + FILL)
    bundle.rows({"actions": [*GOLD, {"name": "fill", "arguments": {}}], "n_rollouts": 1})
    assert agent_eval("-d", "task.jsonl", "--agent", "gold", "--quiet").code == 0
    return next(bundle.folder.glob("runs/*/roll_*.db"))


def test_changes_of_a_database_are_shown_without_control_characters(changed: Path) -> None:
    arguments = ("-X", "utf8", "-m", "reward_kit", "db", "changes", changed)
    text = new_python(*arguments, encoding="utf-8").out
    assert RAW.search(text) is None
    assert rf"\u001b(0\u0007\u202e\u009b{HARMLESS} #1" in text


def test_a_person_who_plays_reads_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    Terminal().show(f"agent: {FOREIGN}")
    assert capsys.readouterr().out == f"agent: {SHOWN}\n"
