"""The model named beside an agent: the one that it asked."""

import pytest
from flight_bundle import Bundle
from stub_server import StubServer

from reward_kit.agent import EvaluationResult, agent_eval, compare, export
from reward_kit.agent.reports.facts import scores_line
from reward_kit.agent.reports.listings import evaluation_lines
from reward_kit.agent.store.transcript import transcript

MODEL = "openai/gpt-4o-mini"
PLAYERS = """
async def silent(rollout):
    return "Sorry."


async def asking(rollout):
    return (await rollout.complete()).message
"""


@pytest.fixture
def bundle(bundle: Bundle, monkeypatch: pytest.MonkeyPatch, stub_llm: StubServer) -> Bundle:
    stub_llm.script("gpt-4o-mini", ["Hello"])
    monkeypatch.setenv("MODEL_AGENT", MODEL)
    return bundle


def run(bundle: Bundle, agent: str, name: str = "one") -> EvaluationResult:
    return agent_eval(bundle.dataset, agent=bundle.player(agent), user="none", n_rollouts=1, eval_id=name)


def labels(result: EvaluationResult) -> set[str]:
    """Its names in the report and in the list of evaluations."""
    _, listed = evaluation_lines(result.log_path.parent, None)
    return {scores_line(result).split("  ")[0], listed.split("  ")[-1]}


def test_an_agent_of_ones_own_that_asks_no_model_is_not_labelled_with_one(bundle: Bundle) -> None:
    result = run(bundle, "silent")
    assert result.configuration["model"] == MODEL
    assert labels(result) == {bundle.player("silent")}
    record = result.record(result.outcomes[0])
    assert record.models == {}
    assert "model" not in transcript(record).split("CALL")[0]
    assert [line["model"] for line in export("one")] == [None]
    run(bundle, "asking", "two")
    compared = compare("one", "two")
    plain = compared.to_json()
    assert (plain["a"]["model"], plain["b"]["model"]) == (None, MODEL)
    assert [(one.a, one.b) for one in compared.settings if one.name == "--model"] == [("not set", MODEL)]


def test_one_that_asks_it_is(bundle: Bundle) -> None:
    result = run(bundle, "asking")
    assert labels(result) == {f"{bundle.player('asking')} ({MODEL})"}
    assert result.record(result.outcomes[0]).models == {"agent": MODEL}
