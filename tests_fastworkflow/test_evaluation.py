"""Retail tasks played by the real FastWorkflow, from the command line to the trajectory."""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from conftest import AGENT, CUSTOMER, ROOT
from scripted_retail import RetailScript, command, gold_steps
from stub_server import Answer, StubServer

from reward_kit.agent.players.agents.fastworkflow.setup import FastWorkflowHome
from reward_kit.cli import main

WRITING = ("cancel", "exchange", "modify", "return")
EXCHANGE, OTHER = "retail.test.000", "retail.test.001"


@pytest.fixture
def run(
    trained: FastWorkflowHome, models: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Any:
    """``run(ids, option, ...)`` evaluates rows; gives the exit code and the trajectories by row id."""
    monkeypatch.setenv("REWARD_KIT_FASTWORKFLOW", str(trained.folder))
    monkeypatch.chdir(tmp_path)

    def evaluate(ids: str, *options: str) -> tuple[int, dict[str, list[dict[str, Any]]]]:
        dataset = str(ROOT / "tau_retail_task" / "task.jsonl")
        code = main(
            [
                *(
                    "agent-eval",
                    "-d",
                    dataset,
                    "--agent",
                    "fastworkflow",
                    "--sim-model",
                    f"openai/{CUSTOMER}",
                ),
                *("--task-ids", ids, "-o", "runs", "--retries", "0", "--debug", *options),
            ]
        )
        records: dict[str, list[dict[str, Any]]] = {}
        (path,) = Path("runs/evals").glob("*.db")
        with contextlib.closing(sqlite3.connect(path)) as store:
            for (text,) in store.execute("SELECT json FROM traces"):
                record = json.loads(text)
                records.setdefault(record["row_id"], []).append(record)
        return code, records

    return evaluate


def writing_rows(rows: dict[str, Any], count: int) -> list[str]:
    """Rows whose actions change something, each in its own way; those with a sum to tell among them."""
    chosen: dict[tuple[str, ...], str] = {}
    for row in rows.values():
        names = {action["name"] for action in row["actions"]}
        changing = sorted(name for name in names if name.startswith(WRITING))
        if changing:
            chosen.setdefault((*changing, *(["told"] if row["outputs"] else [])), row["id"])
    return list(chosen.values())[:count]


def test_tasks_that_write_end_with_reward_1(run: Any, retail_rows: dict[str, Any]) -> None:
    ids = writing_rows(retail_rows, 8)
    assert len(ids) == 8
    code, records = run(",".join(ids))
    assert code == 0
    assert sorted(records) == sorted(ids)
    assert [record["reward"] for played in records.values() for record in played] == [1.0] * len(ids)
    for row, (record,) in records.items():
        made = [(call["name"], call["arguments"]) for call in record["tool_calls"]]
        assert made == [(action["name"], action["arguments"]) for action in retail_rows[row]["actions"]]
        assert record["stop_reason"] == "user_stop"


def test_model_calls_are_in_the_trajectory_with_tokens_and_cost(run: Any, models: StubServer) -> None:
    _, records = run(EXCHANGE)
    (record,) = records[EXCHANGE]
    usage = record["usage"]["agent"]
    asked = len(models.requests_for(AGENT))
    # planner, agent once for each step of seven, planner after the reply, the answer, the summary
    assert asked == usage["calls"] == 11
    assert (usage["input_tokens"], usage["output_tokens"]) == (100 * asked, 10 * asked)
    assert usage["unpriced_calls"] == 0
    assert usage["cost"] > 0
    calls = [call for call in record["model_calls"] if call["role"] == "agent"]
    assert {call["model"] for call in calls} == {f"openai/{AGENT}"}
    assert {call["turn"] for call in calls} == {1, 2}


def test_rollouts_at_once_are_apart_and_none_is_answered_from_a_cache(run: Any, models: StubServer) -> None:
    code, records = run(f"{EXCHANGE},{OTHER}", "--n-rollouts", "3")
    assert code == 0
    assert {row: [r["reward"] for r in played] for row, played in records.items()} == {
        EXCHANGE: [1.0] * 3,
        OTHER: [1.0] * 3,
    }
    assert len(models.requests_for(AGENT)) == sum(
        record["usage"]["agent"]["calls"] for played in records.values() for record in played
    )
    assert len(models.requests_for(AGENT)) == 6 * 11


def test_commands_that_are_not_written_out_go_by_the_rollouts_own_memory(
    run: Any, models: StubServer, script: RetailScript, trained: FastWorkflowHome
) -> None:
    """Ambiguous words are clarified and remembered in a database, which rollouts must not share; and the
    intent models, which they do share, are loaded by whichever of them comes first.
    """
    clear = gold_steps(script.row(EXCHANGE))
    vague = ("execute_workflow_query", {"command": "please look the customer of the parcel up somehow"})
    script.steps[EXCHANGE] = [vague, *clear]
    code, records = run(EXCHANGE, "--n-rollouts", "8")
    assert code == 0
    assert [record["reward"] for record in records[EXCHANGE]] == [1.0] * 8
    calls = {record["usage"]["agent"]["calls"] for record in records[EXCHANGE]}
    assert len(calls) == 1, "each is clarified anew"
    log = next(Path("runs/evals").glob("*.log")).read_text()
    assert "LOCK" not in log
    assert not list((trained.workflow() / "___convo_info").rglob("*")), "the database of all is not used"
    assert "Attempt 1 failed" not in log


def test_the_arguments_of_the_models_are_those_of_the_command_line(run: Any, models: StubServer) -> None:
    run(EXCHANGE, "--temperature", "0.25", "--model-arg", "max_tokens=500")
    for request in models.requests_for(AGENT):
        assert request["temperature"] == 0.25
        assert 500 in (request.get("max_tokens"), request.get("max_completion_tokens"))


@pytest.mark.parametrize(("policy", "seen"), [("none", False), ("insights", True)])
def test_the_planner_sees_the_policy_if_that_is_asked_for(
    run: Any, models: StubServer, policy: str, seen: bool
) -> None:
    run(EXCHANGE, "--fastworkflow-policy", policy)
    first = models.requests_for(AGENT)[0]["messages"][0]["content"]
    rules = (ROOT / "tau_retail_task" / "policy.md").read_text().strip().splitlines()
    assert (max(rules, key=len) in first) == seen
    stored = json.loads(next(Path("runs/evals").glob("*.json")).read_text())
    assert stored["configuration"]["fastworkflow_policy"] == policy


def test_handing_over_to_a_person_ends_the_rollout_at_once(
    run: Any, models: StubServer, script: RetailScript
) -> None:
    hand_over = (
        "execute_workflow_query",
        {"command": command("transfer_to_human_agents", {"summary": "angry"})},
    )
    script.steps[EXCHANGE] = [hand_over, ("finish", {})]
    _, records = run(EXCHANGE)
    (record,) = records[EXCHANGE]
    assert record["stop_reason"] == "terminal_tool"
    assert [call["name"] for call in record["tool_calls"]] == ["transfer_to_human_agents"]
    assert len(models.requests_for(AGENT)) == 2, "the planner, and one step"


def test_a_tool_that_refuses_is_an_observation(run: Any, script: RetailScript) -> None:
    wrong = ("execute_workflow_query", {"command": command("get_order_details", {"order_id": "#W0000000"})})
    script.steps[EXCHANGE] = [wrong, *gold_steps(script.row(EXCHANGE))]
    _, records = run(EXCHANGE)
    (record,) = records[EXCHANGE]
    assert record["reward"] == 1.0
    first = record["tool_calls"][0]
    assert (first["status"], first["content"]) == ("refused", "Error: order not found")
    thoughts = next(m["reasoning_content"] for m in record["messages"] if m.get("reasoning_content"))
    assert "Error: order not found" in thoughts


STUMBLING = """
from .tool import Tool

tries = []


class ExchangeDeliveredOrderItems(Tool):
    @staticmethod
    def invoke(data, **arguments):
        result = data.call("exchange_delivered_order_items", arguments)
        tries.append(result)
        if len(tries) == 1:
            raise ValueError("something around the call has failed")
        return result
"""


def test_a_command_that_is_run_again_does_not_act_twice(
    run: Any, trained: FastWorkflowHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastWorkflow repeats a command in which anything raised, also after its tool was called."""
    home = FastWorkflowHome(tmp_path / "home")
    shutil.copytree(trained.workflows, home.workflows)
    home.venv.symlink_to(trained.venv)
    (home.workflows / "retail_workflow/tools/exchange_delivered_order_items.py").write_text(STUMBLING)
    monkeypatch.setenv("REWARD_KIT_FASTWORKFLOW", str(home.folder))
    _, records = run(EXCHANGE)
    (record,) = records[EXCHANGE]
    assert record["reward"] == 1.0
    assert [call["name"] for call in record["tool_calls"]].count("exchange_delivered_order_items") == 1
    log = next(Path("runs/evals").glob("*.log")).read_text()
    assert "Attempt 1 failed" in log


def test_running_out_of_iterations_is_said_and_marked(run: Any, script: RetailScript) -> None:
    looking = ("what_can_i_do", {})
    script.steps[EXCHANGE] = [looking] * 30
    _, records = run(EXCHANGE)
    (record,) = records[EXCHANGE]
    reply = next(message for message in record["messages"] if message["role"] == "assistant")
    assert reply["content"].startswith("It is done.")
    assert reply["reasoning_content"].endswith("[failed: max_iters_exhausted]")


def test_a_model_that_fails_is_no_fault_of_the_agents(run: Any, models: StubServer) -> None:
    models.fail(AGENT, Answer(status=500), times=1)
    code, records = run(EXCHANGE)
    assert code == 1
    (record,) = records[EXCHANGE]
    assert record["stop_reason"] == "infrastructure_error"
    assert record["reward"] is None


def test_a_refused_key_stops_the_run(run: Any, models: StubServer, capfd: pytest.CaptureFixture[str]) -> None:
    models.fail(AGENT, Answer(status=401, error="Incorrect API key provided"), times=50)
    code, _ = run(EXCHANGE)
    assert code == 2
    error = capfd.readouterr().err
    assert "a model cannot be called" in error
    assert "sk-test-0123456789abcdef" not in error


def test_an_answer_out_of_format_is_the_agents_to_bear(run: Any, models: StubServer) -> None:
    models.script(AGENT, lambda _request, _place: "I would rather talk about the weather.")
    _, records = run(EXCHANGE)
    (record,) = records[EXCHANGE]
    assert record["stop_reason"] == "agent_error"
    assert record["reward"] == 0.0
    assert record["usage"]["agent"]["calls"] > 0


def test_two_workers_share_the_rollouts(run: Any) -> None:
    code, records = run(f"{EXCHANGE},{OTHER}", "--n-rollouts", "2", "--fastworkflow-workers", "2")
    assert code == 0
    assert [record["reward"] for played in records.values() for record in played] == [1.0] * 4


def test_no_key_is_in_any_file(run: Any) -> None:
    run(EXCHANGE, "--model-arg", "api_key=0123456789abcdefgh")
    written_files = [path.read_bytes() for path in Path("runs").rglob("*") if path.is_file()]
    assert written_files
    for content in written_files:
        assert b"0123456789abcdef" not in content
