"""Whole evaluations against a real server that never takes one of the conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flight_bundle import Bundle, flight_bundle
from stub_server import Answer, StubServer

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.model_clients import attempts

ROWS = 12


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(attempts, "LONGEST_WAIT", 0.1)
    return flight_bundle(tmp_path)


def run(bundle: Bundle, stub: StubServer, fault: Answer, bad: int, n_rollouts: int = 1) -> EvaluationResult:
    def agent(request: dict[str, Any], place: int) -> Answer:
        return fault if "BAD" in str(request["messages"]) else Answer(content="How can I help?")

    stub.script("gpt-4o-mini", agent)
    stub.script("gpt-3.5-turbo", lambda request, place: Answer(content="No, thanks. ###STOP###"))
    said = ["BAD" if number == bad else "Hello" for number in range(ROWS)]
    bundle.rows(
        *(
            {
                "id": f"row-{number}",
                "n_rollouts": n_rollouts,
                "initial_messages": [{"role": "user", "content": text}],
            }
            for number, text in enumerate(said)
        )
    )
    return agent_eval(
        bundle.dataset,
        model="openai/gpt-4o-mini",
        sim_model="openai/gpt-3.5-turbo",
        keep_db="none",
        retries=1,
        patience=1.5,
    )


@pytest.mark.parametrize(
    ("fault", "bad"),
    [
        (Answer(status=429, error="slow down", headers={"Retry-After": "0.3"}), 0),
        (Answer(status=429, error="slow down"), ROWS - 1),
        (Answer(status=503, error="overloaded", headers={"Retry-After": "0.3"}), ROWS - 1),
        (Answer(status=500, error="boom"), 0),
        (Answer(status=500, error="boom"), ROWS - 1),
        (Answer(drop=True), ROWS - 1),
    ],
)
def test_it_alone_is_not_judged(bundle: Bundle, stub_llm: StubServer, fault: Answer, bad: int) -> None:
    result = run(bundle, stub_llm, fault, bad)
    assert result.status == "complete"
    assert {outcome.row_id for outcome in result.outcomes if not outcome.judged} == {f"row-{bad}"}
    assert len(result.outcomes) == ROWS


def test_nor_is_a_row_that_always_breaks_the_server(bundle: Bundle, stub_llm: StubServer) -> None:
    result = run(bundle, stub_llm, Answer(status=500, error="boom"), ROWS - 1, n_rollouts=4)
    assert result.status == "complete"
    assert [outcome.row_id for outcome in result.outcomes if not outcome.judged] == [f"row-{ROWS - 1}"] * 4
