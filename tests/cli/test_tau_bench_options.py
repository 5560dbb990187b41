"""tau-bench's command lines and results files at the command line, in a process of its own."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from command import Command
from stub_server import StubServer
from tau_bench_file import RETAIL, RunResult

from reward_kit.agent.config import EvaluationConfig
from reward_kit.cli.agent_eval import agent_eval as command
from reward_kit.cli.agent_eval import given_options
from reward_kit.cli.options import as_click_parses


def configured(*arguments: str) -> EvaluationConfig:
    context = command.make_context("agent-eval", list(arguments))
    return EvaluationConfig(**given_options(context))


def test_a_run_of_tau_bench_is_translated(agent_eval: Command, stub_llm: StubServer, tmp_path: Path) -> None:
    (tmp_path / "tau_retail_task").symlink_to(RETAIL)
    stub_llm.script("gpt-4o", as_user_or_agent)
    line = (
        "-d tau_retail_task/task.jsonl --agent-strategy react --model gpt-4o --provider openai "
        "--user-model gpt-4o --user-provider openai --user-strategy llm --temperature 0 "
        "--max-concurrency 10 --task-ids 2,4,6 --num-trials 4 --seed 10 --max-steps 30"
    )
    options = (*line.split(), "--format", "tau-bench", "--json", "r.json")
    ran = agent_eval(*options, cwd=tmp_path, **stub_llm.environment)
    assert (ran.code, ran.error.count("Error")) == (0, 0)
    entries = json.loads((tmp_path / "r.json").read_text())
    order = [(trial, task) for trial in range(4) for task in (2, 4, 6)]
    assert [(entry["trial"], entry["task_id"]) for entry in entries] == order
    for entry in entries:
        RunResult.model_validate(entry)
        assert entry["traj"][-1]["content"] == "###STOP###"
        assert any(message.get("tool_calls") for message in entry["traj"])
    asked = stub_llm.requests_for("gpt-4o")
    assert {request.get("temperature") for request in asked if is_agent(request)} == {0}


def is_agent(request: dict[str, Any]) -> bool:
    return "# Available tools" in request["messages"][0]["content"]


def as_user_or_agent(request: dict[str, Any], place: int) -> str:
    """One model plays both, as in the command line."""
    if not is_agent(request):
        return ["I want to return something.", "###STOP###"][min(place, 1)]
    looked_up = any(str(message["content"]).startswith("API output") for message in request["messages"])
    if looked_up:
        return 'Thought:\nKnown.\nAction:\n{"name": "respond", "arguments": {"content": "Sorry, no."}}'
    return 'Thought:\nI look.\nAction:\n{"name": "list_all_product_types", "arguments": {}}'


def test_its_own_spellings_mean_the_same() -> None:
    theirs = configured(
        *shlex.split(
            "--agent-strategy tool-calling --model gpt-4o --model-provider openai --user-model gpt-4o "
            "--user-model-provider openai --user-strategy verify --few-shot-displays-path d.jsonl "
            "--task-ids 2 4 6 --num-trials 4 --log-dir results --shuffle 1 --seed 3"
        )
    )
    ours: Any = {"agent": "tool-calling", "model": "gpt-4o", "provider": "openai", "sim_model": "gpt-4o"}
    ours |= {"user_provider": "openai", "user": "verify", "few_shot_displays": "d.jsonl", "n_rollouts": 4}
    rest: dict[str, Any] = {"task_ids": ("2", "4", "6"), "output_dir": "results", "shuffle": True, "seed": 3}
    assert theirs == EvaluationConfig(**ours, **rest)


@pytest.mark.parametrize(
    ("typed", "taken"),
    [
        ("--task-ids 2 4 6 --seed 1", "--task-ids 2,4,6 --seed 1"),
        ("--task-ids 2,4 6", "--task-ids 2,4,6"),
        ("--task-ids --seed 1", "--task-ids --seed 1"),
        ("--shuffle 0 --seed 1", "--seed 1"),
        ("--shuffle 1", "--shuffle"),
        ("--shuffle --seed 0", "--shuffle --seed 0"),
        ("--clear-cache false --guard-user True", "--guard-user"),
    ],
)
def test_forms_that_click_does_not_know(typed: str, taken: str) -> None:
    assert as_click_parses(typed.split()) == taken.split()


def test_other_spellings_are_hinted_at(agent_eval: Command) -> None:
    ran = agent_eval("-d", "task.jsonl", "--agent", "gold", "--epochs", "0")
    assert (ran.code, ran.out) == (2, "")
    assert "No such option '--epochs'. Did you mean '--n-rollouts'?" in ran.error
    ran = agent_eval("--env", "retail", "--model", "gpt-4o")
    assert (ran.code, "Did you mean 'BUNDLE (tau_retail_task for retail)'?" in ran.error) == (2, True)
    ran = agent_eval("task.jsonl", "-d", "other.jsonl")
    assert (ran.code, "Name the bundle once: BUNDLE or --dataset PATH." in ran.error) == (2, True)
