"""Which model is named beside an agent: the one that it asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from flight_bundle import Bundle, flight_bundle
from stub_server import Answer, StubServer

from reward_kit.agent import EvaluationResult, agent_eval, load_rollout
from reward_kit.agent.comparing import compare
from reward_kit.agent.exporting import export
from reward_kit.agent.plugins import is_own
from reward_kit.agent.reports.console import scores_line
from reward_kit.agent.reports.evaluations_table import evaluation_lines
from reward_kit.agent.reports.transcript import transcript

MODEL = "openai/gpt-4o-mini"
AGENTS = """
async def silent(rollout):
    return "Sorry."


async def asking(rollout):
    return (await rollout.complete()).message


async def broken(rollout):
    rollout.stop("infrastructure_error", "no network")
    return ""
"""


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub_llm: StubServer) -> Bundle:
    stub_llm.script("gpt-4o-mini", ["Hello"])
    monkeypatch.setenv("MODEL_AGENT", MODEL)
    monkeypatch.chdir(tmp_path)
    Path("labelled_agents.py").write_text(AGENTS)
    return flight_bundle(tmp_path)


def run(bundle: Bundle, agent: str | None, **options: object) -> EvaluationResult:
    return agent_eval(bundle.dataset, agent=agent, user="none", n_rollouts=1, eval_id="one", **options)


def labels(result: EvaluationResult) -> set[str]:
    """What the report and the list of evaluations call it."""
    _, listed = evaluation_lines(result.log_path.parent, None)
    return {scores_line(result).split("  ")[0], listed.split("  ")[-1]}


def test_an_agent_of_ones_own_that_asks_no_model_is_not_labelled_with_one(bundle: Bundle) -> None:
    result = run(bundle, "labelled_agents:silent")
    assert result.configuration["model"] == MODEL
    assert labels(result) == {"labelled_agents:silent"}
    record = load_rollout(result.folder / result.outcomes[0].file)
    assert record.models == {}
    assert "model" not in transcript(record).split("CALL")[0]
    assert [line["model"] for line in export("one")] == [None]
    agent_eval(bundle.dataset, agent="labelled_agents:asking", user="none", n_rollouts=1, eval_id="two")
    compared = compare("one", "two")
    plain = compared.to_json()
    assert (plain["a"]["model"], plain["b"]["model"]) == (None, MODEL)
    assert [(one.name, one.a, one.b) for one in compared.settings if one.name == "--model"] == [
        ("--model", "not set", MODEL)
    ]


def test_one_that_asks_it_is(bundle: Bundle) -> None:
    result = run(bundle, "labelled_agents:asking")
    assert labels(result) == {f"labelled_agents:asking ({MODEL})"}
    record = load_rollout(result.folder / result.outcomes[0].file)
    assert record.models == {"agent": MODEL}


def test_a_built_in_agent_always_is(bundle: Bundle, stub_llm: StubServer) -> None:
    stub_llm.script("gpt-4o-mini", [Answer(content="Too late", delay=3.0)])
    result = run(bundle, None, timeout=0.3)
    assert result.usage["agent"].calls == 0
    assert labels(result) == {f"tool-calling ({MODEL})"}
    assert load_rollout(result.folder / result.outcomes[0].file).models == {"agent": MODEL}


def test_where_nothing_could_be_judged_nobody_knows_whether_it_would_have_asked(bundle: Bundle) -> None:
    result = run(bundle, "labelled_agents:broken", retries=0)
    assert not any(outcome.judged for outcome in result.outcomes)
    assert labels(result) == {f"labelled_agents:broken ({MODEL})"}


@pytest.mark.parametrize(
    ("spec", "own"),
    [
        ("agents:Mine", True),
        ("my.agents:Mine.other", True),
        ("tool-calling", False),
        ("replay:runs", False),
        ("http://127.0.0.1:80", False),
        ("tau-bench:results.json", False),
    ],
)
def test_whose_code_an_agent_is(spec: str, own: bool) -> None:
    assert is_own(spec) is own
