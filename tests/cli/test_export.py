"""``reward-kit export``: what a person sees, what a trainer gets."""

import json
from pathlib import Path

import pytest
from command import Command, run_command
from flight_bundle import Bundle
from planned_agent import change_log, evaluate
from stored_rollouts import edit

from reward_kit.agent import EvaluationResult, load_rollout
from reward_kit.agent.after.export import COLUMNS, FORMATS
from reward_kit.errors import StorageError

PLAN = {"a": [1, 0], "b": [1, 1]}


@pytest.fixture
def finished(bundle: Bundle) -> EvaluationResult:
    return evaluate(bundle, "first", PLAN)


def test_lines_go_to_the_output_and_words_to_stderr(finished: EvaluationResult, command: Command) -> None:
    ran = command("latest")
    assert (ran.code, ran.error) == (0, "4 rollouts of 2 rows exported\n")
    lines = [json.loads(line) for line in ran.out.splitlines()]
    assert [(line["row_id"], line["rollout"], line["reward"]) for line in lines] == [
        ("a", 0, 1.0), ("a", 1, 0.0), ("b", 0, 1.0), ("b", 1, 1.0),
    ]  # fmt: skip
    assert all(tuple(line) == COLUMNS for line in lines)
    assert all(line["tools"] for line in lines)


def test_what_is_left_out_is_told_with_the_reason(finished: EvaluationResult, command: Command) -> None:
    change_log(finished, "b", reward=None, stop_reason="user_error")
    ran = command("first", "--min-reward", "0.5", "--format", "openai", "--columns", "tools,messages")
    assert ran.code == 0
    left_out = "2 not judged (--unjudged includes them), 1 for their reward"
    assert ran.error == f"1 rollout of 1 row exported; left out: {left_out}\n"
    (line,) = map(json.loads, ran.out.splitlines())
    assert list(line) == ["tools", "messages"]
    others = "2 rollouts of 1 row exported; left out: 2 in other rows\n"
    assert command("first", "--rows", "b", "--unjudged").error == others


def test_rollouts_become_files_that_are_read_again(finished: EvaluationResult, command: Command) -> None:
    ran = command("first", "files", "--format", "rollouts", "--rows", "a")
    assert (ran.code, ran.out) == (0, "")
    assert ran.error == "2 rollouts of 1 row exported to files; left out: 2 in other rows\n"
    outcomes = {one.id: one for one in finished.outcomes if one.row_id == "a"}
    records = [load_rollout(path) for path in Path("files").iterdir()]
    assert {one.id: one.reward for one in records} == {name: one.reward for name, one in outcomes.items()}
    with pytest.raises(StorageError, match="Load it from its evaluation"):
        records[0].reward_arguments()
    assert command("first", "--out", "again", "--format", "rollouts", "--rows", "a").error.startswith("2 ")
    assert "--format rollouts takes a folder" in command("first", "--format", "rollouts").error


def test_a_row_that_is_damaged_costs_its_own_rollouts(finished: EvaluationResult, command: Command) -> None:
    edit(finished.log_path, "UPDATE rows SET fields = '{' WHERE row_id = 'a'")
    ran = command("first")
    assert [json.loads(line)["row_id"] for line in ran.out.splitlines()] == ["b", "b"]
    assert ran.error.count("warning: a rollout is left out: ") == 2
    assert "is damaged" in ran.error


@pytest.mark.parametrize(
    ("damage", "arguments"),
    [
        ("UPDATE rows SET fields = '{'", ("show", "first", "--by", "id")),
        ("UPDATE rows SET fields = '{'", ("show", "first", "a#1")),
        ("UPDATE evaluation SET configuration = '{'", ("agent-eval", "--resume", "first")),
        ("ALTER TABLE evaluation RENAME COLUMN versions TO v", ("compare", "first", "first")),
    ],
)
def test_damage_is_told_in_one_line(
    finished: EvaluationResult, damage: str, arguments: tuple[str, ...]
) -> None:
    edit(finished.log_path, damage)
    ran = run_command(*arguments)
    assert (ran.code, len(ran.error.splitlines())) == (2, 1), ran.error
    assert "first.db: is damaged" in ran.error


def test_db_takes_a_file_of_a_rollout_for_the_rollout(finished: EvaluationResult, command: Command) -> None:
    command("first", "files", "--format", "rollouts", "--rows", "a")
    for outcome in finished.outcomes[:2]:
        path = f"files/roll_{outcome.id}.json"
        by_file, by_id = (run_command("db", "changes", name, "--json") for name in (path, outcome.id))
        assert (by_file.code, by_file.out) == (by_id.code, by_id.out) == (0, by_id.out), by_file.err
        assert (len(json.loads(by_file.out)) > 0) == (outcome.reward == 1)
        assert run_command("db", "open", path, "SELECT 41 + 1").out == "42\n"
    gone = run_command("db", "export", path, "out.db", "-o", "elsewhere")
    assert (gone.code, "is --output-dir right?" in gone.error) == (2, True)


@pytest.mark.parametrize(("arguments", "told"), [
    (["second"], "there is no evaluation 'second'"),
    (["runs/evals/no.db"], "there is no such file"),
    (["first", "--rows", "c"], "there is no row 'c'"),
    (["first", "--columns", "prompt"], "there is no column 'prompt' in the format full"),
    (["first", "--format", "sft"], "'sft' is not one of"),
    (["first", "--out", "no/such/folder.jsonl"], "--out no/such/folder.jsonl lies in no folder"),
    (["first", "--out", "runs"], "--out runs is a folder"),
    (["first", "--out", "runs/evals/first.db"], "is the name of a database, which it would replace"),
])  # fmt: skip
def test_faults_of_usage_are_told_in_one_line(
    finished: EvaluationResult, command: Command, arguments: list[str], told: str
) -> None:
    before = finished.log_path.read_bytes()
    ran = command(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.error
    assert ran.error.splitlines()[-1].startswith("Error: ")
    assert finished.log_path.read_bytes() == before


@pytest.mark.parametrize("layout", ["tau2", "tau-bench"])
def test_no_results_file_is_written_of_nothing(
    finished: EvaluationResult, command: Command, layout: str
) -> None:
    edit(finished.log_path, "DELETE FROM rollouts")
    ran = command("first", "--format", layout, "--out", "theirs.json")
    assert (ran.code, ran.out, ran.error) == (1, "", "0 rollouts exported\n")
    assert not Path("theirs.json").exists()


def table(page: str, section: str) -> list[list[str]]:
    """The rows of a section's table that begin with code, cell by cell."""
    text = (Path(__file__).parents[2] / "docs" / page).read_text().split(f"## {section}\n")[1]
    lines = [line for line in text.split("\n## ")[0].splitlines() if line.startswith("| `")]
    return [[cell.strip(" `") for cell in line.strip("|").split(" |")] for line in lines]


def test_the_documentation_lists_every_column_and_format() -> None:
    columns = ", ".join(row[0] for row in table("export.md", "Columns")).replace("`", "")
    assert tuple(columns.split(", ")) == COLUMNS
    assert tuple(row[0] for row in table("export.md", "Formats")) == FORMATS
