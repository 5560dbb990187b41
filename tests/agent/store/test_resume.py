"""Resuming an evaluation: nothing twice, nothing lost, nothing mixed."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command import run_command, start, wait_for
from flight_bundle import GOLD, Bundle
from seeded_players import AGENT, PLAYERS, USER, write_players
from stored_rollouts import edit, keep_first, query, query_so_far

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.store.evaluation_file import reading
from reward_kit.agent.store.layout import load_evaluation
from reward_kit.agent.store.writer import Store
from reward_kit.errors import StorageError, UsageError

ROWS = [{"id": "a", "actions": GOLD}, {"id": "b", "actions": GOLD}]
MINUTE = 60.0
INPUT_FAULT = 2
NUMBER = "SELECT count(*) AS n FROM rollouts"


def run(bundle: Bundle, **options: Any) -> EvaluationResult:
    return agent_eval(bundle.dataset, **{"agent": "gold", "eval_id": "mine", "n_rollouts": 3, **options})


def stored(result: EvaluationResult) -> int:
    return int(query(result.log_path, NUMBER)[0]["n"])


def test_an_interrupted_evaluation_runs_only_the_rest(bundle: Bundle) -> None:
    first = run(bundle, shuffle=True, max_concurrency=1)
    keep_first(first.log_path, 2)
    again = run(bundle, shuffle=False, max_concurrency=5)
    assert again.score == first.score
    assert [(row.row_id, row.n, row.c) for row in again.rows] == [("a", 3, 3), ("b", 3, 3)]
    assert len({one.id for one in again.outcomes} & {one.id for one in first.outcomes}) == 2
    assert sorted(one.seed for one in again.outcomes) == sorted(one.seed for one in first.outcomes)


def test_its_duration_is_that_of_all_its_runs(bundle: Bundle) -> None:
    first = run(bundle)
    keep_first(first.log_path, 1)
    edit(first.log_path, "UPDATE evaluation SET created = created - 1000")  # idle for long, then
    edit(first.log_path, "UPDATE rollouts SET started = (SELECT created FROM evaluation) + 5, seconds = 35")
    again = run(bundle)
    assert 40 <= again.seconds < 1000
    assert 40 <= run(bundle).seconds < 1000
    assert 40 <= load_evaluation("mine").seconds < 1000


def test_a_time_without_end_is_the_same_in_any_spelling(bundle: Bundle) -> None:
    first = run(bundle, timeout=float("inf"))
    keep_first(first.log_path, 1)
    spelling = "replace(configuration, '1.7976931348623157e+308', 'Infinity')"
    edit(first.log_path, f"UPDATE evaluation SET configuration = {spelling}")  # as earlier versions
    assert "Infinity" not in json.dumps(load_evaluation("mine").configuration)
    again = agent_eval(resume="mine")
    assert (again.n_scored, again.configuration["timeout"]) == (6, sys.float_info.max)


def test_a_memory_limit_of_no_process_ends_nothing(bundle: Bundle) -> None:
    first = run(bundle)
    keep_first(first.log_path, 1)
    limited = "json_set(configuration, '$.worker_memory', 500)"
    edit(first.log_path, f"UPDATE evaluation SET configuration = {limited}")  # as earlier versions
    again = agent_eval(resume="mine")
    assert (again.n_scored, again.configuration["worker_memory"]) == (6, None)


def test_more_rollouts_and_more_rows_join_and_fewer_lose_none(bundle: Bundle) -> None:
    run(bundle, n_rollouts=1)
    bundle.rows({"id": "a", "actions": GOLD}, {"id": "b", "actions": GOLD}, {"id": "c", "actions": GOLD})
    more = run(bundle, n_rollouts=2)
    assert [(row.row_id, row.n) for row in more.rows] == [("a", 2), ("b", 2), ("c", 2)]
    assert stored(more) == 6
    fewer = run(bundle, n_rollouts=1, task_ids="a")
    assert sorted((row.row_id, row.n, row.planned) for row in fewer.rows) == [(it, 2, 2) for it in "abc"]


@pytest.mark.parametrize("reason", ["infrastructure_error", "user_error"])
def test_rollouts_that_could_not_be_judged_are_run_again(bundle: Bundle, reason: str) -> None:
    first = run(bundle)
    edit(first.log_path, "UPDATE rollouts SET reward = NULL, stop_reason = ? WHERE seq = 3", reason)
    again = run(bundle)
    assert (again.complete, again.score, stored(again)) == (True, 1.0, 7)
    last = query(again.log_path, "SELECT attempt FROM rollouts ORDER BY seq")[-1]
    assert last == {"attempt": 1}  # with another seed than the one that failed


def test_rows_that_are_not_chosen_again_count_and_must_be_the_same(bundle: Bundle, caplog: Any) -> None:
    bundle.rows(*ROWS)
    run(bundle)
    bundle.rows(ROWS[0], {**ROWS[1], "actions": []})
    with pytest.raises(UsageError, match="row b: its fields have changed"):
        run(bundle, task_ids="a")
    bundle.rows(ROWS[0])
    assert run(bundle).planned == 6
    assert "row b: 3 rollouts recorded already, 0 asked for; all that are recorded count" in caplog.text


def test_resume_takes_the_stored_options(bundle: Bundle, tmp_path: Path, monkeypatch: Any) -> None:
    first = run(bundle, seed=77, max_concurrency=2)
    keep_first(first.log_path, 4)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for name in ("mine", "latest"):
        again = agent_eval(resume=name, output_dir=str(tmp_path / "runs"))
        assert (again.eval_id, again.configuration["seed"], again.planned) == ("mine", 77, 6)
        assert again.configuration["max_concurrency"] == 2
    assert stored(again) == 6


def test_latest_is_the_one_written_to_last(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="there is no evaluation yet"):
        agent_eval(resume="latest")
    run(bundle, eval_id="older")
    run(bundle, eval_id="newer")
    os.utime("runs/evals/newer.db", (1, 1))
    Path("runs/evals/folder.db").mkdir()
    Path("runs/evals/link.db").symlink_to("nowhere")
    with reading(Path("runs/evals/newer.db")) as connection:
        connection.execute("SELECT 1 FROM rollouts").fetchone()  # which makes an empty log
        assert agent_eval(resume="latest").eval_id == "older"
    Path("runs/evals/latest.db").symlink_to("newer.db")
    assert agent_eval(resume="latest").eval_id == "older"


def test_a_link_is_read_but_not_continued(bundle: Bundle) -> None:
    run(bundle, eval_id="mine")
    Path("runs/evals/link.db").symlink_to("mine.db")
    assert load_evaluation("link").planned
    with pytest.raises(StorageError, match=r"link\.db: is a link, .* Put the file itself in its place"):
        agent_eval(resume="link")


def test_reading_a_killed_evaluation_does_not_make_it_the_latest(bundle: Bundle) -> None:
    run(bundle, eval_id="mine")
    files = Path("runs/evals/mine.db"), Path("runs/evals/mine.db-wal")
    with closing(sqlite3.connect(files[0], isolation_level=None)) as connection:
        connection.execute("UPDATE evaluation SET status = 'running'")
        for file in files:  # as they are when the writer is killed
            copy = file.with_name(file.name.replace("mine", "killed"))
            copy.write_bytes(file.read_bytes())
            os.utime(copy, (1, 1))
    assert load_evaluation("killed").status != "running"
    assert Path("runs/evals/killed.db-wal").stat().st_size > 0
    assert agent_eval(resume="latest").eval_id == "mine"


def test_a_resume_removes_what_killed_processes_have_left(bundle: Bundle) -> None:
    run(bundle)
    left = [Path("runs/a", name, ".roll.db.x.tmp") for name in ("", "0123456789abcdef")]
    for path in left:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half")
        os.utime(path, (1, 1))
    run(bundle)
    assert [path.exists() for path in left] == [False, False]


def test_the_results_of_an_earlier_run_are_gone_while_one_runs(bundle: Bundle) -> None:
    class Looks:
        async def respond(self, rollout: Any) -> str:
            seen.append(Path("runs/evals/mine.json").exists())
            return "Hello"

    seen: list[bool] = []
    for n_rollouts in (1, 2):
        run(bundle, agent=Looks, no_sim_user=True, n_rollouts=n_rollouts)
        assert Path("runs/evals/mine.json").exists()
    assert seen == [False] * 4


def test_the_evaluations_that_may_be_meant_are_named(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match=r"--resume '\.\./evals/mine' is not a valid file name"):
        agent_eval(resume="../evals/mine")
    run(bundle)
    with pytest.raises(UsageError, match=r"no evaluation 'other'.*There are: mine"):
        agent_eval(resume="other")
    for number in range(6):
        run(bundle, eval_id=f"n{number}", n_rollouts=1)
    with pytest.raises(UsageError) as caught:
        agent_eval(resume="mone")
    assert caught.value.remedy == "Did you mean 'mine'? The newest of 7: n5, n4, n3, n2, n1."


def test_a_folder_that_may_not_be_read_is_one_error(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    run(bundle)
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # which root may always
    for name in ("mine", "latest"):
        with pytest.raises(UsageError, match="runs/evals: may not be read"):
            agent_eval(resume=name)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"seed": 11}, "--seed was 10, is 11"),
        ({"max_steps": 5}, "--max-steps was null, is 5"),
        ({"agent": "replay:runs/evals/mine.db"}, '--agent was "gold", is "replay:runs/evals/mine.db"'),
    ],
)
def test_options_that_mix_results_are_refused(bundle: Bundle, change: dict[str, Any], shown: str) -> None:
    first = run(bundle)
    before = first.log_path.read_bytes()
    with pytest.raises(UsageError, match="results would be mixed") as raised:
        run(bundle, **change)
    assert shown in str(raised.value)
    assert "evaluation mine" in str(raised.value)
    assert first.log_path.read_bytes() == before


def test_options_that_change_no_result_may_differ(bundle: Bundle) -> None:
    keep_first(run(bundle).log_path, 1)
    other = {"max_concurrency": 1, "keep_db": "none", "retries": 0, "max_cost": 5, "errors_as_failures": True}
    assert run(bundle, **other).score == 1.0


def started(bundle: Bundle, *options: str) -> subprocess.Popen[str]:
    return start("agent-eval", "--dataset", bundle.dataset, "--eval-id", "mine", *options)


def refused(process: subprocess.Popen[str]) -> str:
    """The message with which the command ended as a fault of its input."""
    _, errors = process.communicate(timeout=MINUTE)
    assert process.returncode == INPUT_FAULT, errors
    assert "Traceback" not in errors
    return " ".join(errors.split())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no tmpfs can be mounted here: that takes root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("keep", ["full", "delta"])
def test_after_a_full_disk_the_rest_is_run_and_nothing_again(bundle: Bundle, disk: Path, keep: str) -> None:
    # 600 rollouts of 4 KB: more than there is room for, in however few transactions they are stored
    options = ["--agent", "gold", "--n-rollouts", "300", "--output-dir", str(disk), "--keep-db", keep]
    assert "the disk is full" in refused(started(bundle, *options))
    path = disk / "evals" / "mine.db"
    kept = {row["id"] for row in query(path, "SELECT id FROM rollouts")}
    assert kept
    subprocess.run(["mount", "-o", "remount,size=50m", str(disk)], check=True)
    result = agent_eval(resume="mine", output_dir=str(disk))
    assert (result.status, result.score, len(result.outcomes)) == ("complete", 1.0, 600)
    assert kept <= {outcome.id for outcome in result.outcomes}
    assert stored(result) == 600


def test_a_read_only_disk_is_reported_at_once_and_can_be_read(bundle: Bundle, disk: Path) -> None:
    first = run(bundle, output_dir=str(disk))
    before = first.log_path.read_bytes()
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    again = started(bundle, "--agent", "gold", "--n-rollouts", "4", "--output-dir", str(disk))
    assert "may not be written. Choose another folder with --output-dir." in refused(again)
    assert first.log_path.read_bytes() == before
    assert len(load_evaluation("mine", disk).outcomes) == 6


def test_a_second_process_is_refused_and_the_first_continues(bundle: Bundle, tmp_path: Path) -> None:
    write_players(tmp_path)
    first = started(bundle, "--agent", AGENT, "--user", USER, "--n-rollouts", "2000")
    path = tmp_path / "runs" / "evals" / "mine.db"
    wait_for(lambda: len(query_so_far(path, "SELECT id FROM rollouts")) >= 4, first)
    message = refused(started(bundle, "--resume"))
    assert f"mine: process {first.pid} on " in message
    assert "Wait for it to end, or choose another --eval-id." in message
    assert (load_evaluation("mine").status, first.poll()) == ("running", None)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    killed = load_evaluation("mine")
    assert (killed.status, killed.reason) == ("interrupted", "it ended without writing its results")
    again = started(bundle, "--agent", AGENT, "--user", USER, "--n-rollouts", "2", "--quiet")
    again.communicate(timeout=MINUTE)
    assert again.returncode == 0
    assert load_evaluation("mine").status == "complete"


FORKS = """
import os, signal, sys, time
from pathlib import Path
from reward_kit.agent.store.writer import Store

store = Store(Path("mine.db"))
child = os.fork()
if not child:
    time.sleep(600)
print(child, flush=True)
sys.stdin.readline()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_that_a_tool_has_forked_holds_no_lock(bundle: Bundle, tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", FORKS], text=True, **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        with pytest.raises(StorageError, match="another process"):
            Store(tmp_path / "mine.db")
        process.stdin.close()
        process.wait(MINUTE)
        os.kill(child, 0)  # it is still there
        Store(tmp_path / "mine.db").close()
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


def test_a_reader_that_stays_does_not_hold_up_the_evaluation(bundle: Bundle) -> None:
    run(bundle, n_rollouts=1)
    with closing(sqlite3.connect("runs/evals/mine.db")) as reader:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM rollouts").fetchone() == (2,)
        assert len(run(bundle, n_rollouts=3).outcomes) == 6
        assert reader.execute("SELECT count(*) FROM rollouts").fetchone() == (2,)
    assert len(load_evaluation("mine").outcomes) == 6


def test_a_changed_agent_of_a_persons_own_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    write_players(tmp_path)
    command = ["agent-eval", "-d", str(bundle.dataset), "--eval-id", "mine", "--agent", AGENT, "--user", USER]
    first = run_command(*command, "--n-rollouts", "1", "--quiet")
    assert (first.err, first.code) == ("", 0)
    (tmp_path / "players.py").write_text(PLAYERS.replace("Shall I?", "May I?"))
    second = run_command(*command, "--n-rollouts", "1", "--quiet")
    assert second.code == INPUT_FAULT
    assert "results would be mixed: players.py has changed" in " ".join(second.err.split())
