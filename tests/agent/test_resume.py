"""Continuing an evaluation: nothing twice, nothing lost, nothing mixed."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import apsw
import pytest
from flight_bundle import GOLD, SEED, TOOLS, Bundle, flight_bundle

from reward_kit.agent import EvaluationConfig, EvaluationResult, agent_eval, run_evaluation
from reward_kit.errors import StorageError, UsageError


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    made = flight_bundle(tmp_path)
    made.rows({"id": "a", "actions": GOLD}, {"id": "b", "actions": GOLD})
    monkeypatch.chdir(tmp_path)
    return made


def run(bundle: Bundle, **options: Any) -> EvaluationResult:
    return agent_eval(bundle.dataset, **{"agent": "gold", "eval_id": "mine", "n_rollouts": 3, **options})


def rollout_lines(result: EvaluationResult) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in result.log_path.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "rollout"]


def cut(result: EvaluationResult, keep: int) -> None:
    """Leave only the first ``keep`` rollouts in the log, as if the process had died then."""
    lines = result.log_path.read_text().splitlines(keepends=True)
    result.log_path.write_text("".join(lines[: keep + 1]))


def test_what_is_finished_is_not_run_again(bundle: Bundle) -> None:
    first = run(bundle)
    ids = {outcome.id for outcome in first.outcomes}
    again = run(bundle)
    assert {outcome.id for outcome in again.outcomes} == ids
    assert len(rollout_lines(again)) == 6
    assert (again.score, again.status) == (1.0, "complete")


def test_an_interrupted_evaluation_runs_only_the_rest(bundle: Bundle) -> None:
    first = run(bundle)
    cut(first, 2)
    again = run(bundle)
    assert again.score == first.score
    assert [(row.row_id, row.n, row.c) for row in again.rows] == [("a", 3, 3), ("b", 3, 3)]
    kept = {line["id"] for line in rollout_lines(again)} & {outcome.id for outcome in first.outcomes}
    assert len(kept) == 2
    assert [outcome.seed for outcome in again.outcomes] == [outcome.seed for outcome in first.outcomes]


def test_its_duration_is_that_of_all_its_runs(bundle: Bundle) -> None:
    first = run(bundle)
    lines = [json.loads(line) for line in first.log_path.read_text().splitlines()]
    lines[0]["created"] -= 1000  # idle for long, then
    lines[1]["started"], lines[1]["seconds"] = lines[0]["created"] + 5, 35.0
    first.log_path.write_text("".join(f"{json.dumps(line)}\n" for line in lines[:2]))
    again = run(bundle)
    assert 40 <= again.seconds < 1000
    assert 40 <= run(bundle).seconds < 1000
    assert json.loads(again.results_path.read_text())["seconds"] >= 40


def test_more_rollouts_and_more_rows_join(bundle: Bundle) -> None:
    run(bundle, n_rollouts=1)
    bundle.rows({"id": "a", "actions": GOLD}, {"id": "b", "actions": GOLD}, {"id": "c", "actions": GOLD})
    more = run(bundle, n_rollouts=2)
    assert [(row.row_id, row.n) for row in more.rows] == [("a", 2), ("b", 2), ("c", 2)]
    assert len(rollout_lines(more)) == 6


def test_fewer_rollouts_and_rows_lose_none_that_are_there(bundle: Bundle) -> None:
    run(bundle)
    fewer = run(bundle, n_rollouts=1, task_ids="a")
    assert sorted((row.row_id, row.n, row.planned) for row in fewer.rows) == [("a", 3, 3), ("b", 3, 3)]


def test_fewer_rollouts_than_are_there_are_spoken_of(
    bundle: Bundle, caplog: pytest.LogCaptureFixture
) -> None:
    run(bundle)
    assert "recorded already" not in caplog.text
    run(bundle, n_rollouts=1)
    assert "row a and 1 more: 3 rollouts are recorded already, 1 asked for; all" in caplog.text


def test_resume_takes_the_options_from_the_log(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = run(bundle, seed=77, max_concurrency=2)
    cut(first, 4)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    for name in ("mine", "latest"):
        again = agent_eval(resume=name, output_dir=str(tmp_path / "runs"))
        assert (again.eval_id, again.configuration["seed"], again.planned) == ("mine", 77, 6)
        assert again.configuration["max_concurrency"] == 2
    assert len(rollout_lines(again)) == 6


def test_latest_is_the_one_written_to_last(bundle: Bundle) -> None:
    run(bundle, eval_id="older")
    run(bundle, eval_id="newer")
    os.utime("runs/evals/newer.jsonl", (1, 1))
    assert agent_eval(resume="latest").eval_id == "older"


def test_the_explanations_of_an_evaluation_are_none_themselves(bundle: Bundle) -> None:
    result = run(bundle, eval_id="mine")
    (result.folder / "evals" / "mine.explanations.jsonl").write_text("{}\n")
    assert agent_eval(resume="latest").eval_id == "mine"
    with pytest.raises(UsageError) as caught:
        agent_eval(resume="other")
    assert caught.value.remedy == "There are: mine."
    for number in range(6):
        run(bundle, eval_id=f"n{number}")
    with pytest.raises(UsageError) as caught:
        agent_eval(resume="other")
    assert caught.value.remedy == "The newest of 7: n5, n4, n3, n2, n1."


def test_the_version_of_sqlite_is_that_of_the_library_in_use() -> None:
    code = "from reward_kit.agent.versions import versions; print(versions()['sqlite'])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == apsw.sqlite_lib_version()


def test_only_a_name_can_be_resumed(bundle: Bundle) -> None:
    run(bundle, eval_id="mine")
    with pytest.raises(UsageError, match=r"--resume '\.\./evals/mine' is no file name"):
        agent_eval(resume="../evals/mine")


def test_there_must_be_something_to_resume(bundle: Bundle) -> None:
    with pytest.raises(UsageError, match="there is no evaluation yet"):
        agent_eval(resume="latest")
    run(bundle)
    with pytest.raises(UsageError, match=r"no evaluation 'other'.*There are: mine"):
        agent_eval(resume="other")


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"seed": 11}, "--seed was 10, is 11"),
        ({"max_steps": 5}, "--max-steps was null, is 5"),
        ({"temperature": 1.0}, "--temperature was null, is 1.0"),
        ({"agent": "replay:runs"}, '--agent was "gold", is "replay:runs"'),
        ({"parallel_tool_calls": False}, "--parallel-tool-calls was true, is false"),
    ],
)
def test_options_that_would_mix_results_are_refused(
    bundle: Bundle, change: dict[str, Any], shown: str
) -> None:
    first = run(bundle)
    before = first.log_path.read_bytes()
    with pytest.raises(UsageError, match="results would be mixed") as raised:
        run(bundle, **change)
    assert shown in str(raised.value)
    assert "evaluation mine" in str(raised.value)
    assert first.log_path.read_bytes() == before


def test_resuming_refuses_them_as_well(bundle: Bundle) -> None:
    run(bundle)
    with pytest.raises(UsageError, match="--seed was 10, is 11"):
        agent_eval(resume="mine", seed=11)


def test_model_arguments_are_compared_as_they_are_stored(bundle: Bundle) -> None:
    run(bundle, model_args={"stop": ("a", "b"), "api_key": "one", "top_p": 1})
    assert run(bundle, model_args={"top_p": 1, "stop": ["a", "b"], "api_key": "another"}).score == 1.0
    with pytest.raises(UsageError, match=r'--model-arg was .*"top_p": 1}, is .*"top_p": 0.5}'):
        run(bundle, model_args={"stop": ["a", "b"], "api_key": "one", "top_p": 0.5})


def test_options_that_change_no_result_may_differ(bundle: Bundle) -> None:
    cut(run(bundle), 1)
    assert (
        run(bundle, max_concurrency=1, keep_db="none", retries=0, max_cost=5, errors_as_failures=True).score
        == 1.0
    )


@pytest.mark.parametrize(
    ("file", "text", "shown"),
    [
        ("seed.sql", SEED + "INSERT INTO flights(id) VALUES (2);", "row a: its seed has changed"),
        (
            "tools.py",
            TOOLS.replace("List flights", "Find flights"),
            "row a: the names, descriptions or parameters",
        ),
        ("tools.py", TOOLS.replace("'reserved'", "'held'"), "flight_task/tools.py has changed"),
        ("reward.py", None, "flight_task/reward.py has changed"),
    ],
)
def test_a_changed_bundle_is_refused(bundle: Bundle, file: str, text: str | None, shown: str) -> None:
    run(bundle)
    path = bundle.folder / file
    path.write_text(path.read_text() + "\n# changed\n" if text is None else text)
    with pytest.raises(UsageError) as raised:
        run(bundle)
    assert shown in str(raised.value)


def test_a_changed_row_is_refused_by_its_id(bundle: Bundle) -> None:
    run(bundle)
    bundle.rows({"id": "a", "actions": GOLD}, {"id": "b", "actions": GOLD, "sim_user_prompt": "You are Bob."})
    with pytest.raises(UsageError, match="row b: its fields have changed") as raised:
        run(bundle)
    assert "row a" not in str(raised.value)


def test_a_torn_line_counts_as_not_finished(bundle: Bundle) -> None:
    first = run(bundle)
    first.log_path.write_bytes(first.log_path.read_bytes()[:-20])
    again = run(bundle)
    assert (again.score, len(rollout_lines(again))) == (1.0, 6)


def test_a_rollout_without_its_trajectory_is_run_again(bundle: Bundle) -> None:
    first = run(bundle)
    (first.folder / first.outcomes[0].file).unlink()
    again = run(bundle)
    assert again.outcomes[0].id != first.outcomes[0].id
    assert [outcome.id for outcome in again.outcomes[1:]] == [outcome.id for outcome in first.outcomes[1:]]


def test_what_could_not_be_judged_is_run_again(bundle: Bundle) -> None:
    first = run(bundle)
    lines = [json.loads(line) for line in first.log_path.read_text().splitlines()]
    lines[3] |= {"reward": None, "stop_reason": "infrastructure_error"}
    first.log_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    again = run(bundle)
    assert (again.complete, again.score) == (True, 1.0)
    assert len(rollout_lines(again)) == 7


def test_a_log_without_a_whole_line_is_begun_anew(bundle: Bundle) -> None:
    first = run(bundle)
    first.log_path.write_text('{"kind": "evalu')
    assert run(bundle).score == 1.0


PLAY = """
import sys
from reward_kit.agent import agent_eval
agent_eval(sys.argv[1], agent="gold", eval_id="mine", n_rollouts=30, max_concurrency=5)
"""


def test_an_evaluation_killed_again_and_again_ends_as_an_undisturbed_one(
    bundle: Bundle, tmp_path: Path
) -> None:
    undisturbed = run(bundle, eval_id="undisturbed", n_rollouts=30)
    chance = random.Random(5)
    log = tmp_path / "runs" / "evals" / "mine.jsonl"
    for _ in range(6):
        process = subprocess.Popen([sys.executable, "-c", PLAY, str(bundle.dataset)], cwd=tmp_path)
        target = chance.randrange(400, 6000) + (log.stat().st_size if log.exists() else 0)
        while process.poll() is None and not (log.exists() and log.stat().st_size > target):
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        process.wait()
    final = run(bundle, n_rollouts=30)
    assert final.complete
    told = [(one.row_id, one.index, one.seed, one.reward, one.steps, one.turns) for one in final.outcomes]
    assert told == [
        (one.row_id, one.index, one.seed, one.reward, one.steps, one.turns) for one in undisturbed.outcomes
    ]
    finals = [(line["row_id"], line["index"]) for line in rollout_lines(final)]
    assert len(finals) == len(set(finals)) == 60


def test_two_processes_never_write_one_evaluation(bundle: Bundle) -> None:
    from reward_kit.agent.runs.evaluation_lock import EvaluationLock

    first = run(bundle)
    lock = EvaluationLock(first.log_path.with_suffix(".lock"))
    with pytest.raises(StorageError, match=r"mine: another process .* is running this evaluation"):
        run(bundle)
    lock.release()
    assert run(bundle).score == 1.0


async def test_a_configuration_that_resumes_has_the_options_that_were_stored(bundle: Bundle) -> None:
    begun = EvaluationConfig(dataset=str(bundle.dataset), agent="gold", n_rollouts=1, eval_id="first")
    first = await run_evaluation(begun)
    resumed = await run_evaluation(EvaluationConfig(resume="first", max_concurrency=3))
    assert [one.id for one in resumed.outcomes] == [one.id for one in first.outcomes]
    assert (resumed.configuration["n_rollouts"], resumed.configuration["max_concurrency"]) == (1, 3)
