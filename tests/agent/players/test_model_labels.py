"""The model named beside an agent: the one that it asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from flight_bundle import Bundle, flight_bundle
from stub_server import StubServer

from reward_kit.agent import EvaluationResult, agent_eval, compare, export, load_rollout
from reward_kit.agent.reports.facts import scores_line
from reward_kit.agent.reports.listings import evaluation_lines
from reward_kit.agent.reports.transcript import transcript

MODEL = "openai/gpt-4o-mini"
AGENTS = """
async def silent(rollout):
    return "Sorry."


async def asking(rollout):
    return (await rollout.complete()).message
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
    """Its names in the report and in the list of evaluations."""
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
