"""What breaks an evaluation from outside: damaged files, a full disk, a deleted log, a second process."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle, flight_bundle
from seeded_players import AGENT, PLAYERS, USER, write_players

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.runs import evaluation_lock
from reward_kit.errors import StorageError, UsageError

MINUTE = 60.0
INPUT_FAULT = 2


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    made.rows({"id": "a", "actions": GOLD}, {"id": "b", "actions": GOLD})
    monkeypatch.chdir(tmp_path)
    return made


def run(bundle: Bundle, **options: Any) -> EvaluationResult:
    return agent_eval(bundle.dataset, **{"agent": "gold", "eval_id": "mine", "n_rollouts": 3, **options})


def start(bundle: Bundle, *options: str, file_limit: int | None = None) -> subprocess.Popen[str]:
    """The command on the bundle, gold by gold; with ``file_limit`` no file can grow beyond so many bytes."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({file_limit},) * 2);"
    code = f"{limit if file_limit else ''}import sys; from reward_kit.cli import main; sys.exit(main())"
    command = ["agent-eval", "--dataset", str(bundle.dataset), "--eval-id", "mine", *options]
    return subprocess.Popen(
        [sys.executable, "-c", code, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def refused(process: subprocess.Popen[str]) -> str:
    """The message with which the command ended as a fault that a person must mend."""
    _, errors = process.communicate(timeout=MINUTE)
    assert process.returncode == INPUT_FAULT, errors
    assert "Traceback" not in errors
    return " ".join(errors.split())


def lines_of(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def wait_for_lines(log: Path, number: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + MINUTE
    while not (log.exists() and log.read_bytes().count(b"\n") >= number):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the evaluation makes no progress"
        time.sleep(0.002)


# -- damaged files


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:-40]), id="torn"),
        pytest.param(lambda path: path.write_bytes(bytes(path.stat().st_size)), id="zeros"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:1000] + bytes(4000)), id="half zeros"),
        pytest.param(lambda path: (path.unlink(), path.mkdir()), id="a folder"),
    ],
)
def test_a_rollout_with_a_damaged_trajectory_is_run_again_and_alone(bundle: Bundle, damage: Any) -> None:
    first = run(bundle)
    damage(first.folder / first.outcomes[0].file)
    again = run(bundle)
    assert again.outcomes[0].id != first.outcomes[0].id
    assert [outcome.id for outcome in again.outcomes[1:]] == [outcome.id for outcome in first.outcomes[1:]]
    assert (again.score, again.planned) == (1.0, 6)


def test_a_lost_trajectory_does_not_count_where_it_cannot_be_run_again(bundle: Bundle) -> None:
    first = run(bundle, task_ids="a")
    (first.folder / first.outcomes[0].file).unlink()
    other = run(bundle, task_ids="b")
    assert [(row.row_id, row.n) for row in other.rows] == [("b", 3), ("a", 2)]


def test_a_line_that_stands_twice_counts_once(bundle: Bundle) -> None:
    first = run(bundle)
    lines = first.log_path.read_bytes().splitlines(keepends=True)
    first.log_path.write_bytes(b"".join([*lines, *lines[1:3]]))
    again = run(bundle)
    assert [(row.row_id, row.n, row.c) for row in again.rows] == [("a", 3, 3), ("b", 3, 3)]
    assert {outcome.id for outcome in again.outcomes} == {outcome.id for outcome in first.outcomes}


def test_rollouts_of_which_nobody_knows_what_was_evaluated_are_refused(bundle: Bundle) -> None:
    first = run(bundle)
    lines = first.log_path.read_bytes().splitlines(keepends=True)
    first.log_path.write_bytes(b"".join(lines[1:]))
    with pytest.raises(StorageError, match=r"mine\.jsonl:1: .*no line before it says what was evaluated"):
        run(bundle)


# -- the disk


def test_a_write_that_is_cut_short_ends_the_run_and_resuming_completes_it(bundle: Bundle) -> None:
    limited = start(bundle, "--agent", "gold", "--n-rollouts", "40", file_limit=30_000)
    assert "runs/evals/mine.jsonl: cannot be written: File too large" in refused(limited)
    log = Path("runs/evals/mine.jsonl")
    assert log.read_bytes().endswith(b"}\n")
    kept = {line["id"] for line in lines_of(log)[1:]}
    assert len(kept) > 5
    result = run(bundle, n_rollouts=40)
    assert (result.status, result.score, len(result.outcomes)) == ("complete", 1.0, 80)
    assert kept <= {outcome.id for outcome in result.outcomes}
    assert list(Path("runs").rglob("*.tmp")) == []


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no tmpfs can be mounted here: that takes root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_after_a_full_disk_the_rest_is_run_and_nothing_again(bundle: Bundle, disk: Path) -> None:
    full = start(bundle, "--agent", "gold", "--n-rollouts", "100", "--output-dir", str(disk))
    assert "the disk is full" in refused(full)
    kept = {line["id"] for line in lines_of(disk / "evals" / "mine.jsonl")[1:]}
    assert kept
    subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
    result = agent_eval(resume="mine", output_dir=str(disk))
    assert (result.status, result.score, len(result.outcomes)) == ("complete", 1.0, 200)
    assert kept <= {outcome.id for outcome in result.outcomes}
    assert len(lines_of(disk / "evals" / "mine.jsonl")) == 202


def test_a_disk_that_became_read_only_is_said_before_anything_runs(bundle: Bundle, disk: Path) -> None:
    first = run(bundle, output_dir=str(disk))
    before = first.log_path.read_bytes()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    again = start(bundle, "--agent", "gold", "--n-rollouts", "4", "--output-dir", str(disk))
    assert "may not be written. Choose another folder with --output-dir." in refused(again)
    assert first.log_path.read_bytes() == before


def test_a_log_deleted_while_it_runs_ends_the_run(bundle: Bundle, tmp_path: Path) -> None:
    write_players(tmp_path)
    process = start(bundle, "--agent", AGENT, "--user", USER, "--n-rollouts", "2000")
    log = tmp_path / "runs" / "evals" / "mine.jsonl"
    wait_for_lines(log, 4, process)
    log.unlink()
    assert "mine.jsonl: was deleted while the evaluation runs" in refused(process)


# -- a second process


def test_a_second_process_is_turned_away_and_the_first_goes_on(bundle: Bundle, tmp_path: Path) -> None:
    write_players(tmp_path)
    first = start(bundle, "--agent", AGENT, "--user", USER, "--n-rollouts", "2000")
    wait_for_lines(tmp_path / "runs" / "evals" / "mine.jsonl", 4, first)
    for options in (["--agent", AGENT, "--user", USER], ["--resume", "mine"], ["--resume"]):
        message = refused(start(bundle, *options))
        assert f"mine: another process ({first.pid} on " in message
        assert "Wait for it to end, or choose another --eval-id." in message
    assert first.poll() is None
    first.send_signal(signal.SIGKILL)
    first.communicate()
    assert (tmp_path / "runs" / "evals" / "mine.lock").exists()
    begun = len(lines_of(tmp_path / "runs" / "evals" / "mine.jsonl"))
    again = start(bundle, "--agent", AGENT, "--user", USER, "--n-rollouts", "2", "--quiet")
    again.communicate(timeout=MINUTE)
    assert again.returncode == 0
    assert len(lines_of(tmp_path / "runs" / "evals" / "mine.jsonl")) > begun


# -- other settings


def test_another_order_and_another_concurrency_change_no_rollout(bundle: Bundle) -> None:
    first = run(bundle, shuffle=True, max_concurrency=1)
    lines = first.log_path.read_bytes().splitlines(keepends=True)
    first.log_path.write_bytes(b"".join(lines[:3]))
    again = run(bundle, shuffle=False, max_concurrency=5)
    told = [(one.row_id, one.index, one.seed, one.reward) for one in again.outcomes]
    assert sorted(told) == sorted((one.row_id, one.index, one.seed, one.reward) for one in first.outcomes)


def test_a_changed_agent_of_ones_own_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    write_players(tmp_path)
    options = ["--agent", AGENT, "--user", USER, "--n-rollouts", "1", "--quiet"]
    first = start(bundle, *options)
    assert (first.communicate(timeout=MINUTE)[1], first.returncode) == ("", 0)
    (tmp_path / "players.py").write_text(PLAYERS.replace("Shall I?", "May I?"))
    assert "results would be mixed: players.py has changed" in refused(start(bundle, *options))


def test_changed_displays_are_refused(bundle: Bundle, tmp_path: Path, stub_llm: Any) -> None:
    stub_llm.script("gpt-4o-mini", 'Action: {"name": "respond", "arguments": {"content": "No."}}')
    displays = tmp_path / "displays.jsonl"
    display = {"messages_display": "user: Hi\nassistant: Hello"}
    displays.write_text(json.dumps(display) + "\n")
    options = {
        "agent": "few-shot",
        "model": "openai/gpt-4o-mini",
        "user": "none",
        "few_shot_displays": str(displays),
        "n_rollouts": 1,
    }
    run(bundle, **options)
    displays.write_text(json.dumps({"messages_display": "user: Ho\nassistant: Hello"}) + "\n")
    with pytest.raises(UsageError, match=r"displays\.jsonl has changed"):
        run(bundle, **options)


def test_a_disk_that_takes_nothing_more_is_told_where_the_evaluation_is_begun(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(evaluation_lock, "os", SimpleNamespace(**{**vars(os), "write": write}))
    with pytest.raises(StorageError, match="the disk is full") as raised:
        agent_eval(bundle.dataset, agent="gold", eval_id="full")
    assert "--resume" in str(raised.value)
    assert not list(Path("runs/evals").iterdir())
    monkeypatch.undo()
    monkeypatch.chdir(bundle.folder.parent)
    assert agent_eval(bundle.dataset, agent="gold", eval_id="full").complete


def test_what_only_has_the_name_of_a_log_is_none(bundle: Bundle) -> None:
    whole = agent_eval(bundle.dataset, agent="gold", eval_id="whole")
    (whole.log_path.parent / "folder.jsonl").mkdir()
    (whole.log_path.parent / "zlink.jsonl").symlink_to("nowhere")
    with pytest.raises(UsageError, match=r"no evaluation 'folder'\. There are: whole\."):
        agent_eval(resume="folder")
    assert agent_eval(resume="latest").eval_id == "whole"


FORKS = """
import os, signal, sys, time
from pathlib import Path
from reward_kit.agent.runs.evaluation_lock import EvaluationLock

lock = EvaluationLock(Path("mine.lock"))
child = os.fork()
if not child:
    lock.release()  # as at the end of the evaluation, should the child come to it
    time.sleep(600)
print(child, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_tool_has_forked_holds_no_lock_when_its_run_is_killed(bundle: Bundle, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        with pytest.raises(StorageError, match=f"another process \\({process.pid} on "):
            evaluation_lock.EvaluationLock(tmp_path / "mine.lock")
        process.stdin.close()
        process.wait(MINUTE)
        os.kill(child, 0)  # it is still there
        evaluation_lock.EvaluationLock(tmp_path / "mine.lock").release()
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()
