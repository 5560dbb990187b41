"""``reward-kit agent-eval`` with several models: an evaluation for each, then a comparison."""

import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from command import Command
from flight_bundle import GOLD, Bundle
from stub_server import Answer, StubServer, book_and_pay

from reward_kit.agent import load_evaluation

GOOD, BAD = "openai/gpt-4o-mini", "openai/gpt-4o"
SWEEP = ("-d", "task.jsonl", "--model", GOOD, "--model", BAD, "--no-sim-user")


@pytest.fixture
def models(stub_llm: StubServer, bundle: Bundle) -> StubServer:
    """A model that does the task, and one that only says so."""
    bundle.rows({"actions": GOLD, "n_rollouts": 8})
    stub_llm.script("gpt-4o-mini", book_and_pay)
    stub_llm.script("gpt-4o", ["Booked and paid."])
    return stub_llm


def names_in(bundle: Bundle) -> list[str]:
    return sorted(path.stem for path in (bundle.folder / "runs" / "evals").glob("*.db"))


def test_each_model_has_its_evaluation_and_the_end_is_a_comparison(
    agent_eval: Command, bundle: Bundle, models: StubServer
) -> None:
    ran = agent_eval(*SWEEP, "--eval-id", "two", **models.environment)
    assert (ran.code, "Error" in ran.error) == (0, False)
    assert names_in(bundle) == ["two-openai-gpt-4o", "two-openai-gpt-4o-mini"]
    table = ran.out[ran.out.rindex("evaluation ") :]
    assert re.search(r"A +two-openai-gpt-4o-mini +1 +8/8 +1\.000.* baseline +tool-calling \(open", table)
    assert re.search(r"B +two-openai-gpt-4o +1 +8/8 +0\.000.* worse on these +tool-calling \(open", table)
    assert "B is worse on these tasks: -100.0 points" in table
    assert ran.out.endswith("reward-kit compare two-openai-gpt-4o-mini two-openai-gpt-4o\n")
    before = len(models.requests)
    again = agent_eval(*SWEEP, "--eval-id", "two", **models.environment)
    assert (again.code, len(models.requests)) == (0, before)


def test_the_highest_exit_code_counts(agent_eval: Command, models: StubServer) -> None:
    twice = ("--model", GOOD)
    ran = agent_eval(*SWEEP, *twice, "--quiet", "--fail-under", "0.5", **models.environment)
    assert (ran.code, ran.error) == (1, "Pass^1 is below --fail-under 0.5.\n")
    first, second, *comparison = ran.out.splitlines()
    assert first.startswith("tool-calling (openai/gpt-4o-mini)  Pass^1 1.000")
    assert second.startswith("tool-calling (openai/gpt-4o)  Pass^1 0.000")
    assert comparison[1].split()[:2] == ["evaluation", "rows"]


def test_a_model_that_cannot_be_called_does_not_keep_the_others_waiting(
    agent_eval: Command, bundle: Bundle, models: StubServer
) -> None:
    more = ("--model", "openai/unknown", "--quiet", "--eval-id", "three")
    ran = agent_eval("-d", "task.jsonl", *more, *SWEEP[2:], **models.environment)
    assert ran.code == 2
    assert ran.error.count("Error: ") == 1
    assert "unknown" in ran.error
    assert "B is worse on these tasks" in ran.out


def test_an_interrupted_sweep_continues_with_the_same_command(
    start: Callable[..., Any], agent_eval: Command, bundle: Bundle, models: StubServer
) -> None:
    models.script("gpt-4o", [Answer(content="Wait.", delay=30)])
    command = start(*SWEEP, "--eval-id", "it", **models.environment)
    while not models.requests_for("gpt-4o"):
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    _, error = command.communicate(timeout=60)
    assert command.returncode == 130
    assert error.endswith("Continue the sweep with the same command and --eval-id it.\n")
    models.script("gpt-4o", ["Booked and paid."])
    before = len(models.requests_for("gpt-4o-mini"))
    ran = agent_eval(*SWEEP, "--eval-id", "it", **models.environment)
    assert (ran.code, len(models.requests_for("gpt-4o-mini"))) == (0, before)
    runs = bundle.folder / "runs"
    assert [load_evaluation(name, runs).status for name in names_in(bundle)] == ["complete", "complete"]


def test_models_whose_names_differ_in_marks_have_an_evaluation_each(
    agent_eval: Command, bundle: Bundle, models: StubServer
) -> None:
    alike = ("gpt-4o:1", "gpt-4o/1")
    for name in alike:
        models.script(name, ["Booked and paid."])
    named = [part for name in alike for part in ("--model", f"openai/{name}")]
    given = ("-d", "task.jsonl", *named, "--no-sim-user", "--eval-id", "it")
    assert agent_eval(*given, **models.environment).error.count("Error") == 0
    found = [load_evaluation(name, bundle.folder / "runs") for name in names_in(bundle)]
    assert sorted(one.configuration["model"] for one in found) == ["openai/gpt-4o/1", "openai/gpt-4o:1"]


@pytest.mark.parametrize(
    ("option", "instead"), [("--json", "compare A B --json"), ("--resume", "--eval-id NAME")]
)
def test_options_of_one_evaluation_are_refused(
    agent_eval: Command, bundle: Bundle, models: StubServer, option: str, instead: str
) -> None:
    ran = agent_eval(*SWEEP, option, "one")
    assert ran.code == 2
    assert f"{option} cannot be combined with several --model" in ran.error
    assert instead in ran.error
