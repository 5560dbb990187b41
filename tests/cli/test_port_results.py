"""``reward-kit port results`` and ``export --format tau2``: what a person types and sees."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from command import Command, run_command
from tau2_results import bundle_in, document, simulation, suspended, task_of
from tau_bench_file import write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    bundle_in(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def port(folder: Path) -> Command:
    return partial(run_command, "port", "results")


def file_of(*rewards: float, task: str = "suspended") -> Any:
    """Trials of a user who does not restart the phone, with these grades in the file."""
    messages = suspended(restarts=False)
    tries = [simulation(task, messages, reward, trial=at, DB=1.0) for at, reward in enumerate(rewards)]
    return document(tries, [task_of("suspended")], n_trials=3)


def test_an_evaluation_like_any_other(port: Command, folder: Path) -> None:
    write(folder / "theirs.json", file_of(0.0, 0.0, 0.0))
    ran = port("theirs.json", "--dataset", "phone_task", "--eval-id", "theirs")
    assert (ran.code, ran.error.count("Error")) == (0, 0)
    assert "The bundle's rewards agree with them in 3 of 3 judged rollouts." in ran.out
    missing = "all trials of 5 tasks of the dataset: airplane, data_off, used_up, abroad, both."
    assert f"Missing from the file: {missing}" in " ".join(ran.out.split())
    assert run_command("agent-eval", "phone_task", "--agent", "gold", "--eval-id", "gold").code == 0
    shown = run_command("show", "theirs suspended#2")
    assert "Please restart the phone." in shown.out
    compared = run_command("compare", "theirs", "gold")
    assert (compared.code, "suspended" in compared.out) == (0, True)
    card = json.loads(run_command("export", "theirs", "--format", "card").out)
    assert card["denominators"]["judged"] == 3


def test_a_grade_that_moved_is_exit_code_1(port: Command, folder: Path) -> None:
    write(folder / "theirs.json", file_of(1.0))
    ran = port("theirs.json", "-d", "phone_task", "--json")
    assert ran.code == 1
    (moved,) = json.loads(ran.out)["agreement"]["disagreements"]
    assert (moved["task_id"], moved["recorded"], moved["reward"]) == ("suspended", 1.0, 0.0)
    assert "task suspended, trial 0: 1 in the file, 0 here" in " ".join(ran.error.split())


def test_a_file_of_tau_bench_is_read_by_the_same_command(port: Command, folder: Path) -> None:
    assert (
        run_command(
            "agent-eval", "phone_task", "--agent", "gold", "--rows", "used_up", "--eval-id", "gold"
        ).code
        == 0
    )
    assert run_command("export", "gold", "--format", "tau-bench", "--out", "old.json").code == 0
    ran = port("old.json", "-d", "phone_task")
    assert (ran.code, "agree with them in 1 of 1 judged rollout" in ran.out) == (0, True)


def test_what_is_wrong_is_one_line(port: Command, folder: Path) -> None:
    write(folder / "theirs.json", file_of(1.0, task="lost"))
    ran = port("theirs.json", "-d", "phone_task")
    assert (ran.code, ran.out) == (2, "")
    place = "theirs.json: $.simulations[0].task_id"
    remedy = "Name the dataset that the file was made with."
    assert ran.error == f"Error: {place}: the dataset has no task lost. {remedy}\n"
    assert port("none.json", "-d", "phone_task").error == "Error: none.json: there is no such file\n"
    assert "Missing option '-d' / '--dataset'" in port("theirs.json").error


def test_the_export_says_how_many(port: Command, folder: Path) -> None:
    assert (
        run_command(
            "agent-eval", "phone_task", "--agent", "gold", "--eval-id", "gold", "--num-trials", "2"
        ).code
        == 0
    )
    ran = run_command("export", "gold", "--format", "tau2", "--out", "ours.json")
    assert (ran.code, ran.error) == (0, "12 rollouts exported\n")
    assert port("ours.json", "-d", "phone_task").code == 0
    refused = run_command("export", "gold", "--format", "tau2", "--rows", "both")
    assert (refused.code, "--rows does not go with --format tau2" in refused.error) == (2, True)
