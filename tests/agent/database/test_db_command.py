"""``reward-kit db``: the databases of an evaluation at the command line."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from command import Finished, run_command
from flight_bundle import GOLD, ROW, Bundle
from stored_rollouts import edit, query

from reward_kit.agent import evaluate
from reward_kit.agent.database import Database
from reward_kit.cli.db import db

SEED = """
CREATE TABLE bookings (id TEXT PRIMARY KEY, passenger TEXT, status TEXT);
INSERT INTO bookings VALUES ('A1', 'Alice', 'reserved'), ('B2', 'Bob', 'paid');
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A row's folder with a base and a final state."""
    with Database.seed(tmp_path / "base.db", SEED) as base, base.fork() as fork:
        fork.sync.execute("UPDATE bookings SET status = 'paid' WHERE id = 'A1'")
        fork.sync.execute("INSERT INTO bookings VALUES ('C3', 'Cleo', 'reserved')")
        fork.export(tmp_path / "roll_1.db")
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(db, [str(argument) for argument in arguments])


def shell(path: Path, typed: str, *options: str) -> Finished:
    """The shell in a process of its own, which is where it reads and writes."""
    return run_command("db", "open", path, *options, typed=typed)


def test_changes_of_a_rollout_are_lines(folder: Path) -> None:
    result = run("changes", folder / "roll_1.db")
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        "bookings #A1 status: 'reserved' -> 'paid'",
        "bookings #C3: inserted (id='C3', passenger='Cleo', status='reserved')",
    ]


def test_changes_as_json(folder: Path) -> None:
    records = json.loads(run("changes", folder / "roll_1.db", "--json").stdout)
    made = [(record["op"], record["key"]) for record in records]
    assert made == [("update", {"id": "A1"}), ("insert", {"id": "C3"})]
    assert json.loads(run("changes", folder / "base.db", "--json").stdout) == []


def test_changes_from_another_database(folder: Path) -> None:
    result = run("changes", folder / "base.db", "--base", folder / "roll_1.db")
    assert result.output.splitlines() == [
        "bookings #A1 status: 'paid' -> 'reserved'",
        "bookings #C3: deleted (id='C3', passenger='Cleo', status='reserved')",
    ]
    same = run("changes", folder / "roll_1.db", "--base", folder / "roll_1.db")
    assert same.stdout == ""
    assert same.stderr == "no changes\n"


def test_an_export_is_a_complete_database(folder: Path) -> None:
    out = folder / "out.db"
    assert run("export", folder / "roll_1.db", out).exit_code == 0
    assert query(out, "SELECT count(*) AS n FROM bookings WHERE status = 'paid'") == [{"n": 2}]
    edit(out, "DELETE FROM bookings")
    refused = run("export", folder / "roll_1.db", out)
    assert refused.exit_code == 2
    assert "--force replaces it" in refused.output
    assert run("export", folder / "roll_1.db", out, "--force").exit_code == 0
    assert query(out, "SELECT count(*) AS n FROM bookings") == [{"n": 3}]


def test_the_shell_runs_sql_from_the_command_line(folder: Path) -> None:
    answer = shell(folder / "roll_1.db", "", "SELECT count(*) FROM bookings", ".tables")
    assert answer.out.split() == ["3", "bookings"]
    wrong = shell(folder / "roll_1.db", "", "SELECT nope")
    assert wrong.code == 1
    assert "no such column: nope" in wrong.error


def test_the_shell_reads_only_unless_told_otherwise_and_never_writes_the_file(folder: Path) -> None:
    contents = {path: path.read_bytes() for path in folder.iterdir()}
    typed = "DELETE FROM bookings;\nSELECT count(*) FROM bookings;\n"
    refused = shell(folder / "roll_1.db", typed)
    assert refused.out.split() == ["3"]
    assert "readonly" in refused.err
    assert shell(folder / "roll_1.db", typed, "--writable").out.split() == ["0"]
    assert {path: path.read_bytes() for path in folder.iterdir()} == contents


def test_faults_are_one_line_and_exit_code_2(folder: Path) -> None:
    (folder / "text.db").write_text("hello " * 100)
    for arguments in (("open", "text.db"), ("changes", "text.db"), ("export", "text.db", folder / "x.db")):
        result = run(arguments[0], folder / arguments[1], *arguments[2:])
        assert result.exit_code == 2
        assert result.stderr == f"Error: {folder}/text.db: not a SQLite database\n"
    assert run("changes", folder / "none.db").exit_code == 2


def test_a_rollout_is_named_by_its_row_or_its_id(bundle: Bundle, tmp_path: Path) -> None:
    bundle.rows({"actions": GOLD, "outputs": []})
    for keep in ("full", "delta"):
        evaluate(dataset=str(bundle.dataset), agent="gold", eval_id=keep, keep_db=keep)
        rollout, *_ = query(Path(f"runs/evals/{keep}.db"), "SELECT id FROM rollouts")
        for name in (f"{keep} {ROW['id']}#1", rollout["id"]):
            changed = run("changes", name)
            assert changed.exit_code == 0, changed.output
            assert "bookings #" in changed.output
            assert run("export", name, tmp_path / "out.db", "--force").exit_code == 0
            with Database.open(tmp_path / "out.db") as exported:
                assert exported.read_only().execute("SELECT count(*) FROM bookings").scalar_one() >= 1
    assert run("changes", "full nosuch#1").exit_code == 2
