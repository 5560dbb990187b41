"""``--format tau-bench``: the shapes that the benchmark's scripts read, and what stands in them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from stored_rollouts import edit
from stub_server import Answer, StubServer, call
from tau_bench_file import RETAIL, EnvInfo, RunResult, row_of, their_pass_power

from reward_kit.agent import EvaluationResult, Rollout, Usage, agent_eval
from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.tau.results.file import task_numbers
from reward_kit.agent.tau.results.tau2_export import tau2_parts
from reward_kit.agent.tau.results.tau_bench import results_parts

MODELS = {"model": "openai/gpt-4o-mini", "sim_model": "openai/gpt-3.5-turbo"}


@pytest.fixture(autouse=True)
def _forget_the_bundle() -> Iterator[None]:
    yield
    sys.modules.pop("tau_retail_task", None)


def written(result: EvaluationResult, numbers: dict[str, int]) -> list[dict[str, Any]]:
    document: list[dict[str, Any]] = json.loads(b"".join(results_parts(result, numbers)))
    return document


def numbers_of(dataset: str) -> dict[str, int]:
    with TaskBundle.load(RETAIL / dataset) as bundle:
        return task_numbers([task.row for task in bundle.tasks])


@pytest.fixture
def played(stub_llm: StubServer, tmp_path: Path) -> EvaluationResult:
    """Two tasks in four trials: done, not done, used up, broken down; in one the outputs are said."""
    gold = [call(action["name"], **action["arguments"]) for action in row_of(5)["actions"]]
    looking = [call("list_all_product_types")]

    def agent(request: dict[str, Any], place: int) -> Any:
        trial = stub_llm.trial_of(request)  # type: ignore[attr-defined] # put there below
        if trial == 3:
            return Answer(status=400, error="no such thing", code="invalid_request_error")
        steps = {0: [*gold, "All done."], 1: ["I cannot do that."], 2: looking}[trial]
        return steps[min(place, len(steps) - 1)]

    seeds: list[int] = []

    def trial_of(request: dict[str, Any]) -> int:
        if request["seed"] not in seeds:
            seeds.append(request["seed"])
        return seeds.index(request["seed"]) // 2

    stub_llm.trial_of = trial_of  # type: ignore[attr-defined] # for the script above
    stub_llm.script("gpt-4o-mini", agent)
    stub_llm.script("gpt-3.5-turbo", ["Hello, I need help.", "###STOP###"])
    options: Any = {"task_ids": "5,6", "n_rollouts": 4, "max_steps": 12, "retries": 0, "max_concurrency": 1}
    options |= {"errors_as_failures": True, "output_dir": str(tmp_path / "runs")}  # the first as in the file
    return agent_eval(RETAIL / "task_classic.jsonl", **options, **MODELS)


def test_the_file_holds_what_the_benchmark_would_write(played: EvaluationResult) -> None:
    entries = written(played, numbers_of("task_classic.jsonl"))
    assert [list(entry) for entry in entries] == [["task_id", "reward", "info", "traj", "trial"]] * 8
    order = [(trial, task) for trial in range(4) for task in (5, 6)]
    assert [(entry["trial"], entry["task_id"]) for entry in entries] == order
    for entry in entries:
        RunResult.model_validate(entry, strict=True)
        EnvInfo.model_validate(entry["info"])
        assert all({"role", "content"} <= message.keys() for message in entry["traj"])
        assert entry["traj"][0]["role"] == "system"
    task, row = entries[0]["info"]["task"], row_of(5)
    assert (task["user_id"], task["outputs"]) == (row["metadata"]["user_id"], row["outputs"])
    assert task["actions"] == [{"name": it["name"], "kwargs": it["arguments"]} for it in row["actions"]]
    assert task["instruction"] == row["sim_user_prompt"]
    done, other, refused, _, used_up, _, broken, _ = entries
    assert (done["reward"], done["info"]["source"]) == (1.0, "user")
    assert done["info"]["reward_info"]["info"] == {"r_actions": 1.0, "gt_data_hash": ""}
    assert done["info"]["user_cost"] > 0
    assert done["traj"][-1]["content"] == "###STOP###"
    assert (other["reward"], refused["reward"]) == (0.0, 0.0)
    assert refused["info"]["reward_info"]["info"]["r_actions"] == 0.0
    assert (used_up["reward"], used_up["info"]["reward_info"]) == (0.0, None)
    assert used_up["info"]["source"] == "list_all_product_types"
    assert (broken["reward"], broken["info"]["traceback"]) == (0.0, "")
    assert "no such thing" in broken["info"]["error"]
    theirs = their_pass_power(entries)
    assert theirs[1] == pytest.approx(1 / 8)
    assert {k: played.pass_power[k].value for k in theirs} == pytest.approx(theirs)


def test_a_damaged_rollout_keeps_its_reward_and_is_named(
    played: EvaluationResult, caplog: pytest.LogCaptureFixture
) -> None:
    first = played.outcomes[0]
    edit(played.log_path, "UPDATE traces SET json = json || ' ' WHERE rollout = ?", first.id)
    entry = written(played, numbers_of("task_classic.jsonl"))[0]
    assert (entry["reward"], entry["traj"]) == (1.0, [])
    assert "is damaged" in entry["info"]["error"]
    assert f"without its conversation: {played.log_path}/{first.id}: rollout {first.row_id}#1" in caplog.text


class Unpriced:
    """Breaks down after calls of both sides for which no price is known."""

    async def respond(self, rollout: Rollout) -> str:
        for role in ("agent", "user"):
            rollout.count_usage(Usage(calls=1, unpriced_calls=1), model="m", role=role)
        raise RuntimeError("broken")


def test_what_the_agent_broke_off_comes_back_judged_and_unknown_costs_are_null(bundle: Bundle) -> None:
    bundle.rows({"id": "a", "n_rollouts": 1, "actions": GOLD})
    broken = agent_eval(bundle.dataset, agent=Unpriced, user="none")
    (entry,) = written(broken, {"a": 0})
    (simulation,) = json.loads(b"".join(tau2_parts(broken, "flight")))["simulations"]
    assert entry["info"]["user_cost"] is simulation["user_cost"] is simulation["agent_cost"] is None
    Path("ours.json").write_text(json.dumps([entry]))
    (again,) = agent_eval(bundle.dataset, from_tau_bench="ours.json").outcomes
    assert (again.reward, again.stop_reason) == (0.0, "agent_error")
