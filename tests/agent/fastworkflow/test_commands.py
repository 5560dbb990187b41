"""``reward-kit fastworkflow`` and ``agent-eval --agent fastworkflow``, as they are typed."""

import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from command import start, wait_for
from fake_home import make_home
from flight_bundle import Bundle

from reward_kit.agent.store.layout import load_evaluation
from reward_kit.cli import main

EXAMPLE = {
    "seats/_commands/book.py": "# declares a command\n",
    "seats/_commands/_context.py": "",
    "seats/tools/tool.py": "class Tool:\n    pass\n",
    "seats/tools/book.py": (
        "from .tool import Tool\n\n\nclass Book(Tool):\n"
        "    @staticmethod\n    def invoke(data, seat):\n        data[seat] = 1\n"
    ),
    "seats/seat_data/__init__.py": "def load_data():\n    return {}\n",
    "seats/seat_data/seats.json": "{}",
    "seats/description.txt": "Seats",
}
OTHER = "other/_commands/look.py"
EVALUATION = ["agent-eval", "--agent", "fastworkflow", "--no-sim-user", "--retries", "1", "-o", "runs"]


PYTHON = f"""#!{sys.executable}
import pathlib, shutil, sys

program = pathlib.Path(sys.argv[0])
if sys.argv[1:3] == ["-m", "venv"]:
    (pathlib.Path(sys.argv[-1]) / "bin").mkdir(parents=True)
    shutil.copy(program, pathlib.Path(sys.argv[-1]) / "bin" / "python")
elif "--fail" in sys.argv:
    sys.exit(1)
else:
    packages = program.parents[1] / "lib" / "python3.11" / "site-packages"
    shutil.copytree(sys.argv[sys.argv.index("--examples") + 1], packages / "fastworkflow" / "examples")
    (packages / "fastworkflow-2.30.7.dist-info").mkdir()
    (packages / "pip.txt").write_text(" ".join(sys.argv[1:]))
"""
"""A Python whose `venv` copies itself and whose `pip install` installs a small package."""


@pytest.fixture
def setup(tmp_path: Path) -> list[str]:
    """`fastworkflow setup` with that Python."""
    program = tmp_path / "python"
    program.write_text(PYTHON)
    program.chmod(0o755)
    return ["fastworkflow", "setup", "--dir", str(tmp_path / "home"), "--python", str(program)]


def write_examples(folder: Path, texts: dict[str, str]) -> str:
    """Write the workflows that the package would bring; where they lie, for the command line."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


def test_setup_makes_an_environment_and_an_example(tmp_path: Path, setup: list[str], capfd: Any) -> None:
    examples = write_examples(tmp_path / "examples", {**EXAMPLE, OTHER: ""})
    home = tmp_path / "home"
    assert main([*setup, "--workflow", "seats", "--", "--examples", examples]) == 0
    prepared = home / "workflows" / "seats"
    out = capfd.readouterr().out
    assert f"FastWorkflow 2.30.7 is in {home}" in out
    assert f"workflow: {prepared}" in out
    installed = next(home.rglob("pip.txt")).read_text()
    assert installed.startswith("-m pip install")
    assert "fastworkflow[training]==2.30.*" in installed
    kept = ("_commands/book.py", "_commands/_context.py", "tools/tool.py", "description.txt")
    for path in kept:
        assert (prepared / path).read_text() == EXAMPLE[f"seats/{path}"]
    assert 'return data.call("book", arguments)' in (prepared / "tools" / "book.py").read_text()
    assert "class Book(Tool):" in (prepared / "tools" / "book.py").read_text()
    assert [path.name for path in (prepared / "seat_data").iterdir()] == ["__init__.py"]
    assert 'context["reward_kit_tools"]' in (prepared / "seat_data" / "__init__.py").read_text()

    trained = prepared / "___command_info" / "global"
    trained.mkdir(parents=True)
    (trained / "threshold.json").write_text("{}")
    (prepared / "tools" / "book.py").write_text("broken")
    assert main([*setup, "--workflow", "seats"]) == 0, "nothing is installed again"
    assert (trained / "threshold.json").exists(), "the training is kept"
    assert 'data.call("book"' in (prepared / "tools" / "book.py").read_text()

    assert main([*setup, "--workflow", "nowhere"]) == 2
    assert "no example workflow 'nowhere'. There are other, seats." in capfd.readouterr().err
    assert main([*setup, "--workflow", "other"]) == 2
    assert "the example other has no tools that could call those of a rollout" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--", "--fail"], "pip cannot install FastWorkflow (exit code 1). See its output above."),
        (["--python", "python9.9"], "'python9.9'. FastWorkflow needs Python 3.11 to 3.13; name one"),
    ],
)
def test_setup_says_what_failed(setup: list[str], capfd: Any, more: list[str], told: str) -> None:
    assert main([*setup, *more]) == 2
    said = capfd.readouterr().err
    assert told in said
    assert "FastWorkflow needs" in said


def test_training_gets_keys_without_any_being_written(tmp_path: Path, capfd: Any, monkeypatch: Any) -> None:
    home = make_home(tmp_path / "home")
    script = '#!/bin/sh\necho "$@"\ncat "$5" "$6"\necho key is $LITELLM_API_KEY_SYNDATA_GEN\n'
    (home / "venv/bin/python").write_text(script)
    monkeypatch.setenv("LLM_SYNDATA_GEN", "openai/gpt-4o-mini")
    monkeypatch.setenv("LITELLM_API_KEY_SYNDATA_GEN", "sk-0123456789abcdef")
    assert main(["fastworkflow", "train", "--dir", str(home)]) == 0
    program, *files, key = capfd.readouterr().out.splitlines()
    assert program.startswith(f"-I -m fastworkflow.train {home / 'workflows/airline'} ")
    assert 'NOT_FOUND="NOT_FOUND"' in files
    assert "LLM_SYNDATA_GEN=${LLM_SYNDATA_GEN}" in files
    assert "LITELLM_API_KEY_SYNDATA_GEN=${LITELLM_API_KEY_SYNDATA_GEN}" in files
    assert not any("sk-" in line for line in files)
    assert key == "key is sk-0123456789abcdef"


def test_training_says_what_it_needs(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["fastworkflow", "train", "--dir", str(make_home(tmp_path / "home"))]) == 2
    assert "LLM_SYNDATA_GEN not set: name a model" in capfd.readouterr().err


def test_check_finds_everything_in_place(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["fastworkflow", "check"]) == 0
    assert f"FastWorkflow 2.30.1 is ready: {home / 'workflows/airline'}" in capfd.readouterr().out


@pytest.fixture
def bundle(bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """The flight bundle, whose rows say what the fake worker does."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef")
    monkeypatch.setenv("REWARD_KIT_FASTWORKFLOW", str(make_home(tmp_path / "home")))
    return bundle


def row(line: str) -> dict[str, Any]:
    lines = [{"role": "user", "content": line}]
    return {"id": line.split()[0], "initial_messages": lines, "end_goal_sql": "SELECT count(*) FROM bookings"}


@pytest.mark.parametrize("option", [[], ["--dataset"]])
def test_check_takes_the_bundle_as_other_commands_do(bundle: Bundle, capfd: Any, option: list[str]) -> None:
    bundle.rows(row("say Hello"))
    assert main(["fastworkflow", "check", *option, "flight_task"]) == 0
    assert main(["fastworkflow", "check", *option, "no_task"]) == 2
    assert "Error: no_task: no such file or folder" in capfd.readouterr().err


def test_an_evaluation_runs_from_the_command_line(bundle: Bundle) -> None:
    bundle.rows(row('use [["create_booking", {"flight_id": 1, "passenger": "Alice"}]]'), row("say Hello"))
    options = ["-d", "flight_task", "--n-rollouts", "3", "--fastworkflow-workers", "2"]
    assert main([*EVALUATION, *options, "--debug"]) == 0
    (database,) = Path("runs/evals").glob("*.db")
    result = load_evaluation(database)
    assert result.configuration["agent"] == "fastworkflow"
    assert result.configuration["fastworkflow_policy"] == "none"
    rewards = sorted((outcome.row_id, outcome.reward) for outcome in result.outcomes)
    assert rewards == [("say", 0.0)] * 3 + [("use", 1.0)] * 3
    everything = b"".join(path.read_bytes() for path in Path("runs").rglob("*") if path.is_file())
    assert b"sk-test-0123456789abcdef" not in everything


def test_rows_that_need_tools_without_a_command_are_left_out(bundle: Bundle, capfd: Any) -> None:
    (Path("home/workflows/airline/_commands") / "pay_booking.py").unlink()
    book = {"name": "create_booking", "arguments": {"flight_id": 1, "passenger": "Alice"}}
    pay = {"name": "pay_booking", "arguments": {"booking_id": "x"}}
    bundle.rows(row("say Hello") | {"actions": [book]}, row("use []") | {"actions": [book, pay]})
    options = [*EVALUATION, "-d", "flight_task", "--n-rollouts", "1"]
    assert main([*options, "--retries", "0"]) == 2
    found = "a command in the workflow: pay_booking (row use); --skip-unplayable leaves these rows out"
    assert found in capfd.readouterr().err
    assert main([*options, "--skip-unplayable", "--eval-id", "rest"]) == 0
    fault = "task.jsonl:2: row use: the workflow has no command for the tool pay_booking"
    assert f"warning: skipped: {fault}" in capfd.readouterr().err
    assert [outcome.row_id for outcome in load_evaluation("rest").outcomes] == ["say"]


def test_interrupting_an_evaluation_ends_the_workers(tmp_path: Path, bundle: Bundle) -> None:
    bundle.rows(row("hang ."))
    pid_file = tmp_path / "pid"
    program = tmp_path / "home/venv/bin/python"
    program.write_text(program.read_text().replace("exec", f'echo $$ > "{pid_file}"\nexec'))
    evaluation = start(*EVALUATION, "-d", "flight_task")
    wait_for(lambda: list(tmp_path.glob("runs/evals/*.db")) and pid_file.exists(), evaluation)
    evaluation.send_signal(signal.SIGINT)
    _, error = evaluation.communicate(timeout=60)
    assert evaluation.returncode == 130, error
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)


def test_remaking_the_environment_keeps_what_was_trained_in_it(setup: list[str], tmp_path: Path) -> None:
    examples = write_examples(tmp_path / "examples", EXAMPLE)
    assert main([*setup, "--workflow", "seats", "--", "--examples", examples]) == 0
    packages = next((tmp_path / "home").rglob("site-packages"))
    internal = packages / "fastworkflow" / "_workflows" / "cme"
    trained = internal / "___command_info" / "IntentDetection" / "threshold.json"
    for file in (internal / "_commands" / "abort.py", trained):
        file.parent.mkdir(parents=True)
        file.write_text("{}")
    shutil.copytree(internal / "_commands", tmp_path / "commands")
    (packages / "fastworkflow-2.30.7.dist-info").rename(packages / "fastworkflow-2.29.0.dist-info")
    shutil.rmtree(packages / "fastworkflow" / "examples")
    assert main([*setup, "--", "--fail"]) == 2, "as without a network"
    kept = tmp_path / "home" / "kept_training"
    assert (kept / "cme" / "IntentDetection" / "threshold.json").exists()
    shutil.rmtree(tmp_path / "home" / "venv")
    shutil.copytree(tmp_path / "commands", internal / "_commands")  # a new release brings it again
    (packages / "fastworkflow-2.30.8.dist-info").mkdir()
    shutil.copytree(examples, packages / "fastworkflow" / "examples")
    assert main([*setup, "--workflow", "seats"]) == 0
    assert trained.exists()
    assert not kept.exists()
