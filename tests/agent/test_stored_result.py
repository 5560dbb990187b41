"""What an evaluation leaves on disk is read back as what it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle, flight_bundle
from planned_agent import evaluate
from tau_bench_file import RETAIL, entry, native, row_of, write

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.reports.facts import facts_of
from reward_kit.agent.runs.stored_evaluation import load_evaluation
from reward_kit.agent.runs.stored_result import stored_result
from reward_kit.errors import StorageError

PLAN = {"a": [1, 1], "b": [1, 0], "c": [0, 0]}
BLAMED = json.dumps({"author": "agent", "fault": "other", "sentence": "It did nothing."})


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.chdir(tmp_path)
    return flight_bundle(tmp_path)


def read_back(name: str) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(stored_result(load_evaluation(name)).to_json()))
    return plain


def written(result: EvaluationResult) -> dict[str, Any]:
    """The results file, with the configuration of the log, where paths are absolute."""
    header = json.loads(result.log_path.read_text().splitlines()[0])
    return {**json.loads(result.results_path.read_text()), "configuration": header["configuration"]}


def test_results_are_those_that_were_written(bundle: Bundle) -> None:
    result = evaluate(bundle, "first", PLAN)
    assert read_back("first") == written(result)


def test_the_judgements_of_a_model_are_there(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("judge", [BLAMED] * 3)
    result = evaluate(bundle, "first", PLAN, explain="openai/judge")
    again = stored_result(load_evaluation("latest"))
    assert again.explanations is not None
    assert len(again.explanations.usable) == 3
    assert again.to_json() == written(result)


def test_what_a_replay_found_is_there(bundle: Bundle) -> None:
    first = evaluate(bundle, "first", PLAN)
    tools = (bundle.folder / "tools.py").read_text()
    bundle.write("tools.py", tools.replace('{"ok": True}', '{"ok": "yes"}'))
    result = agent_eval(bundle.dataset, agent=f"replay:{first.log_path}", eval_id="again")
    assert result.compared_with is not None
    assert result.compared_with.differences
    assert read_back("again") == written(result)


def test_the_agreement_with_a_file_of_tau_bench_is_there(bundle: Bundle, tmp_path: Path) -> None:
    done_nothing = native({**row_of(0), "actions": []}, [])
    file = write(tmp_path / "theirs.json", [entry(0, done_nothing, 1.0, row=row_of(0))])
    result = agent_eval(RETAIL / "task_classic.jsonl", from_tau_bench=file, eval_id="theirs")
    assert result.agreement is not None
    assert result.agreement.disagreements
    assert read_back("theirs") == written(result)


def test_results_of_an_earlier_state_are_not_taken_for_the_present_one(bundle: Bundle) -> None:
    result = evaluate(bundle, "first", PLAN)
    lines = result.log_path.read_text().splitlines()
    result.log_path.write_text("\n".join(lines[:-2]) + "\n")
    stored = load_evaluation("first")
    assert (stored.status, len(stored.outcomes), stored.planned) == ("interrupted", 4, 6)
    again = stored_result(stored)
    assert (again.status, again.reason) == ("interrupted", "it ended without writing its results")
    assert again.seconds > 0


def test_a_damaged_part_of_the_results_is_named(bundle: Bundle) -> None:
    result = evaluate(bundle, "first", PLAN)
    plain = json.loads(result.results_path.read_text())
    result.results_path.write_text(json.dumps({**plain, "compared_with": {"source": "x"}}))
    with pytest.raises(StorageError, match=r"first\.json: is not the results of an evaluation"):
        stored_result(load_evaluation("first"))


METRICS = """
from reward_kit import RewardOutput

def evaluate(messages, *, db, rollout, **kwargs):
    paid = float(db.execute("SELECT count(*) FROM bookings WHERE status = 'paid'").scalar_one())
    metrics = {"paid": {"score": paid, "reason": "counted"}}
    if rollout.index == 0:
        metrics["polite"] = {"score": 0.25, "reason": "curt"}
    return RewardOutput(score=paid, reason="", metrics=metrics)
"""


def test_the_metrics_of_a_reward_have_means_over_rows(bundle: Bundle) -> None:
    bundle.write("reward.py", METRICS)
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 2}, {"id": "b", "actions": [], "n_rollouts": 1})
    result = agent_eval(bundle.dataset, agent="gold", eval_id="parts")
    assert result.averages.metrics == {"paid": 0.5, "polite": 0.25}
    assert [outcome.metrics for outcome in result.outcomes] == [
        {"paid": 1.0, "polite": 0.25},
        {"paid": 1.0},
        {"paid": 0.0, "polite": 0.25},
    ]
    facts = [*facts_of(result)]
    assert facts[1:3] == [("", "paid 0.500"), ("", "polite 0.250")]
    written = json.loads(result.results_path.read_text())
    assert written["averages"]["metrics"] == result.averages.metrics
    result.results_path.unlink()
    assert stored_result(load_evaluation("parts")).averages.metrics == result.averages.metrics


def test_a_mean_of_metrics_is_a_number_however_large_they_are(bundle: Bundle) -> None:
    bundle.write("reward.py", METRICS.replace("0.25", "1.7e308").replace("rollout.index == 0", "True"))
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 2}, {"id": "b", "actions": GOLD, "n_rollouts": 1})
    result = agent_eval(bundle.dataset, agent="gold", eval_id="parts")
    assert result.averages.metrics == {"paid": 1.0, "polite": 1.7e308}
    assert "Infinity" not in result.results_path.read_text()


def test_metrics_that_are_no_numbers_are_a_damaged_line(bundle: Bundle) -> None:
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 2})
    result = agent_eval(bundle.dataset, agent="gold", eval_id="parts")
    lines = result.log_path.read_text().splitlines()
    broken = {**json.loads(lines[1]), "metrics": {"paid": "much"}}
    result.log_path.write_text("\n".join([lines[0], json.dumps(broken), lines[2], ""]))
    with pytest.raises(StorageError, match="paid is 'much'"):
        load_evaluation("parts")
