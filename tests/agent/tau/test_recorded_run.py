"""``--from-tau-bench``: recorded calls are made again on the bundle's data, and judged anew."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from stub_server import StubServer, call
from tau_bench_file import RETAIL, crash, entry, native, row_of, text, their_pass_power, write

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.database import Database
from reward_kit.agent.rollout.gold import replay_gold_calls
from reward_kit.agent.store.layout import RunsFolder
from reward_kit.agent.tau.results.tau_bench import results_parts
from reward_kit.errors import BundleError, UsageError

Judge = Callable[..., EvaluationResult]
Answers = dict[int, list[str]]
CLASSIC = RETAIL / "task_classic.jsonl"


@pytest.fixture(scope="session")
def observations(tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """The answers of the tools to the gold calls of some tasks."""
    import asyncio

    folder = RunsFolder(tmp_path_factory.mktemp("gold"))
    found = {}
    with TaskBundle.load(CLASSIC) as bundle:
        path = folder.ensure_base(bundle.tasks[0].seed)
        with Database.open(path, mode=bundle.tasks[0].registry.database) as base:
            for index in (0, 2, 5, 12, 24):
                replay = asyncio.run(replay_gold_calls(bundle.tasks[index], base))
                with replay.database:
                    found[index] = [call.content or "Transfer successful" for call in replay.calls]
    return found


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[Judge]:
    """Judge a file of these entries with a dataset."""

    def run(entries: Any, dataset: Path = CLASSIC, **options: Any) -> EvaluationResult:
        path = write(tmp_path / "results.json", entries)
        return agent_eval(dataset, from_tau_bench=path, output_dir=str(tmp_path / "runs"), **options)

    yield run
    sys.modules.pop("tau_retail_task", None)


def outcomes(result: EvaluationResult) -> list[tuple[str, int, float | None, str]]:
    return [(one.row_id, one.index, one.reward, one.stop_reason) for one in result.outcomes]


@pytest.mark.parametrize("written", [native, text])
def test_recorded_calls_are_made_again_and_judged(judge: Judge, observations: Answers, written: Any) -> None:
    said = " and ".join(row_of(2)["outputs"])
    result = judge(
        [
            entry(0, written(row_of(0), observations[0]), 1.0),
            entry(2, written(row_of(2), observations[2], said=said), 1.0),
            entry(2, written(row_of(2), observations[2], said="Done."), 0.0, trial=1),
        ]
    )
    assert outcomes(result) == [
        ("retail.classic.000", 0, 1.0, "user_stop"),
        ("retail.classic.002", 0, 1.0, "user_stop"),
        ("retail.classic.002", 1, 0.0, "user_stop"),
    ]
    assert result.agreement is not None
    assert (result.agreement.compared, result.agreement.disagreements) == (3, ())
    assert result.agreement.different_results == ()
    assert result.agreement.tool_results == len(observations[0]) + 2 * len(observations[2])
    assert result.failures == {"missing_output": 1}
    record = result.record(result.outcomes[0])
    assert [call.name for call in record.tool_calls] == [action["name"] for action in row_of(0)["actions"]]
    assert record.tool_calls[-1].changes
    assert record.user.startswith("tau-bench:")


def test_a_reward_that_the_bundle_does_not_give_is_reported(judge: Judge, observations: Answers) -> None:
    row = row_of(0)
    short = {**row, "actions": row["actions"][:-1]}
    changed = [*observations[0][:-1], "something else"]
    other = entry(0, native(row, changed), 1.0, trial=3)
    result = judge([entry(0, native(short, observations[0][:-1]), 1.0, row=row), other])
    assert result.agreement is not None
    (disagreement,) = result.agreement.disagreements
    assert (disagreement.task_id, disagreement.trial) == (0, 0)
    assert (disagreement.recorded, disagreement.reward) == (1.0, 0.0)
    assert "exchange_delivered_order_items" in disagreement.why
    (difference,) = result.agreement.different_results
    where = "task 0, trial 3, exchange_delivered_order_items"
    assert difference.startswith(f"{where}: 'something else' in the file")
    lines = "\n".join(result.agreement.lines())
    assert "agree with them in 1 of 2 judged rollouts" in lines
    assert "task 0, trial 0: 1 in the file, 0 here" in lines
    stored = json.loads(result.results_path.read_text())
    assert stored["agreement"]["disagreements"][0]["row_id"] == "retail.classic.000"


def test_a_trajectory_without_a_reward_was_cut_off(judge: Judge) -> None:
    row = row_of(0)
    looking = {"actions": [row["actions"][0]] * 45}
    traj = native(looking, ["yusuf_rossi_9620"] * 45, last="")
    result = judge([entry(0, traj, 0.0, reward_info=None)])
    (only,) = result.outcomes
    assert (only.reward, only.stop_reason, only.failure, only.steps) == (0.0, "max_steps", "max_steps", 45)
    assert result.agreement is not None
    assert result.agreement.tool_results == 45


def test_a_run_that_broke_down_is_left_out_or_counted_as_failed(judge: Judge, observations: Answers) -> None:
    entries = [
        entry(0, native(row_of(0), observations[0]), 1.0),
        crash(0, "rate limit", "Traceback\nlitellm.RateLimitError: rate limit", trial=1),
        crash(5, "Expecting value", "Traceback\njson.decoder.JSONDecodeError: Expecting value"),
        entry(5, native(row_of(5), observations[5]), 1.0, trial=1),
    ]
    left_out = judge(entries, eval_id="out")
    assert outcomes(left_out)[1:3] == [
        ("retail.classic.000", 1, None, "infrastructure_error"),
        ("retail.classic.005", 0, 0.0, "agent_error"),
    ]
    assert "rate limit" in left_out.outcomes[1].trouble
    assert left_out.pass_power[1].value == pytest.approx(0.75)
    counted = judge(entries, eval_id="counted", errors_as_failures=True)
    theirs = their_pass_power(entries)
    assert {k: counted.pass_power[k].value for k in (1, 2)} == pytest.approx(theirs)
    assert counted.agreement is not None
    assert counted.agreement.pass_power == pytest.approx(theirs)


def test_another_task_under_the_same_number_is_refused(judge: Judge, observations: Answers) -> None:
    entries = [entry(task, native(row_of(task), observations[task]), 1.0) for task in (0, 5)]
    entries[1]["info"]["task"]["user_id"] = "somebody_else_1"
    with pytest.raises(BundleError) as error:
        judge(entries)
    assert str(error.value).count("\n") == 0
    fault = "$[1].info.task.user_id: task 5 is about the user somebody_else_1, row retail.classic.005"
    assert fault in str(error.value)
    with pytest.raises(BundleError, match=r"\$\[0\]\.task_id: the dataset has no task 115"):
        judge([{**entries[0], "task_id": 115}])


def test_tasks_that_were_corrected_since_are_named(judge: Judge, observations: Answers, caplog: Any) -> None:
    whole, cut = native(row_of(0), observations[0]), native(row_of(12), observations[12], last="")
    judge([entry(0, whole, 1.0), entry(12, cut, 1.0)], RETAIL / "task.jsonl")
    assert "expects something else than the file: actions (task 12)" in caplog.text


def test_chosen_rows_are_judged_and_resumed_by_name(judge: Judge, observations: Any, tmp_path: Path) -> None:
    entries = [entry(index, native(row_of(index), observations[index]), 1.0) for index in (0, 5)]
    judge(entries, task_ids="5,7", eval_id="again")
    result = agent_eval(resume="again", output_dir=str(tmp_path / "runs"))
    assert outcomes(result) == [("retail.classic.005", 0, 1.0, "user_stop")]
    assert result.configuration["agent"] == f"tau-bench:{tmp_path / 'results.json'}"
    with pytest.raises(BundleError, match="has no result of the chosen rows"):
        judge(entries, task_ids="7")
    with pytest.raises(UsageError, match=r"results would be mixed:\s+results\.json has changed"):
        judge([{**each, "reward": 0.0} for each in entries], task_ids="5,7", eval_id="again")


def test_options_that_would_run_something_are_refused(judge: Judge) -> None:
    for option in ({"agent": "gold"}, {"n_rollouts": 2}, {"user": "llm"}):
        with pytest.raises(UsageError, match="--from-tau-bench runs nothing"):
            judge([crash(0, "x", "")], **option)


def test_our_own_files_give_the_tools_what_the_model_wrote(bundle: Bundle, stub_llm: StubServer) -> None:
    """The history wraps arguments that are no JSON object."""
    bundle.rows({"id": "a", "n_rollouts": 1, "sim_user_prompt": None, "actions": GOLD})
    broken = call("pay_booking", '{"booking_id": "7')
    stub_llm.script("gpt-4o-mini", [broken, "Done."])
    played = agent_eval(bundle.dataset, model="openai/gpt-4o-mini")
    Path("theirs.json").write_bytes(b"".join(results_parts(played, {"a": 0})))
    again = agent_eval(bundle.dataset, from_tau_bench="theirs.json")
    (record,) = again.records()
    assert "not valid JSON" in record.tool_calls[0].content
