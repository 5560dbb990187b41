"""Simulated users that misbehave, over HTTP: each ends in the right stop reason and the right class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, flight_bundle
from stub_server import Answer, Script, StubServer, call

from reward_kit.agent import RolloutRecord, agent_eval, load_rollout

AGENT = "gpt-4o-mini"
USER = "gpt-3.5-turbo"
WHO = "Who is going to fly?"
PROMPT = "You are Alice, customer A1234. You want a paid seat on the first flight."
REQUEST = {"role": "user", "content": "Book me a flight"}


@pytest.fixture
def evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub_llm: StubServer) -> Any:
    """Evaluate one rollout with scripts for agent and user; its record, and the evaluation's outcomes."""
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)

    def run(agent: list[Script], says: Any, /, **options: Any) -> tuple[RolloutRecord, list[Any]]:
        row = {"n_rollouts": 1, "actions": GOLD, "max_steps": 6, "sim_user_prompt": PROMPT}
        bundle.rows({**row, "initial_messages": [REQUEST], **options.pop("row", {})})
        stub_llm.script(AGENT, agent)
        stub_llm.script(USER, says)
        result = agent_eval(
            str(bundle.dataset),
            **{"model": f"openai/{AGENT}", "sim_model": f"openai/{USER}", "retries": 0, **options},
        )
        last = next(outcome for outcome in result.outcomes if outcome.final)
        with load_rollout(tmp_path / "runs" / last.file) as record:
            return record, result.outcomes

    return run


def calls_of(stub: StubServer) -> int:
    return len(stub.requests_for(USER))


@pytest.mark.parametrize(
    ("strategy", "answer"),
    [
        ("llm", "  \n"),
        ("llm", call("create_booking", flight_id=1, passenger="Alice")),
        ("react", "<think>What would Alice say? ###STOP###"),
        ("verify", Answer(message={"content": None, "reasoning_content": "I ponder. ###STOP###"})),
        ("reflection", Answer(content="", finish_reason="length")),
    ],
    ids=["blank", "tool call", "thought", "reasoning", "cut off"],
)
def test_a_user_with_nothing_to_say_is_at_fault(
    evaluate: Any, stub_llm: StubServer, strategy: str, answer: Script
) -> None:
    record, (outcome,) = evaluate([WHO], [answer], user=strategy)
    assert outcome.stop_reason == "user_error"
    assert "3 answers in a row were empty" in outcome.stop_detail
    assert outcome.reward is None
    assert calls_of(stub_llm) == 3
    assert record.usage["user"].calls == 3
    assert [line["content"] for line in record.messages if line["role"] == "user"] == ["Book me a flight"]


def test_what_a_model_says_that_will_not_play_the_user_is_told(evaluate: Any) -> None:
    refuses = Answer(message={"content": None, "refusal": "I cannot pretend\nto be Alice."})
    _, (outcome,) = evaluate([WHO], [refuses])
    assert outcome.stop_reason == "user_error"
    assert outcome.stop_detail.endswith("(finish reason stop); the last one: I cannot pretend to be Alice.")


@pytest.mark.parametrize("strategy", ["llm", "react", "verify", "reflection"])
def test_no_thought_reaches_the_agent(evaluate: Any, stub_llm: StubServer, strategy: str) -> None:
    secret = "The secret word is plum."
    said = (
        f"<think>{secret}</think>Thought: {secret}\nUser Response: For me." if strategy == "react" else None
    )

    def user(request: dict[str, Any], _place: int) -> Script:
        asked = request["messages"]
        if len(asked) == 1:
            return "true"
        if len(asked) > 4:
            return "###STOP###"
        return said or Answer(
            content=f"<think>{secret}</think>For me.", message={"reasoning_content": secret}
        )

    record, (outcome,) = evaluate([WHO, "Wait."], user, user=strategy)
    assert outcome.stop_reason == "user_stop"
    assert "plum" not in str(record.messages)
    assert "plum" not in str(stub_llm.requests_for(AGENT))
    assert "plum" in str([each.answer for each in record.model_calls])


@pytest.mark.parametrize(
    ("agent", "user", "stop_reason", "kind"),
    [
        ([WHO], ["###STOP###"], "user_stop", "stopped_early"),
        ([WHO], ["I want to fly to New York."], "max_steps", "repeats_itself"),
        ([WHO], ["Alice, customer A4321.", "Me."], "max_steps", "contradicts_instruction"),
    ],
)
def test_a_failure_that_the_user_explains_is_the_users(
    evaluate: Any, agent: list[Script], user: list[Script], stop_reason: str, kind: str
) -> None:
    record, (outcome,) = evaluate(agent, user)
    assert outcome.stop_reason == stop_reason
    assert outcome.reward == 0.0
    assert outcome.failure == "user_error"
    assert kind in outcome.user_faults
    assert any(fault["kind"] == kind and fault["decisive"] for fault in record.user_faults)


def test_a_user_that_does_as_it_should_has_no_faults(evaluate: Any) -> None:
    booked = [WHO, call("create_booking", flight_id=1, passenger="Alice"), "I cannot take your money."]
    _, (outcome,) = evaluate(booked, ["Alice, customer A1234.", "Thanks anyway. ###STOP###"])
    assert outcome.user_faults == []
    assert outcome.failure not in (None, "user_error")
