"""Simulated users that misbehave, over HTTP: each ends in the right stop reason and the right class."""

import json
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from stub_server import Answer, Script, StubServer, call

from reward_kit.agent import Trace, agent_eval

AGENT = "gpt-4o-mini"
USER = "gpt-3.5-turbo"
WHO = "Who is going to fly?"
PROMPT = "You are Alice, customer A1234. You want a paid seat on the first flight."
ROW = {"n_rollouts": 1, "actions": GOLD, "max_steps": 6, "sim_user_prompt": PROMPT}
ROWS = [{**ROW, "initial_messages": [{"role": "user", "content": "Book me a flight"}]}]


@pytest.fixture
def evaluate(bundle: Bundle, stub_llm: StubServer) -> Any:
    """Evaluate one rollout with scripts for agent and user; its record, and the evaluation's outcomes."""

    def run(agent: list[Script], says: Any, /, **options: Any) -> tuple[Trace, list[Any]]:
        stub_llm.script(AGENT, agent)
        stub_llm.script(USER, says)
        models = {"model": f"openai/{AGENT}", "sim_model": f"openai/{USER}"}
        result = agent_eval(bundle.dataset, retries=0, **models, **options)
        return result.record(result.outcomes[0]), result.outcomes

    return run


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
def test_a_silent_user_is_at_fault(evaluate: Any, stub_llm: Any, strategy: str, answer: Script) -> None:
    record, (outcome,) = evaluate([WHO], [answer], user=strategy)
    assert outcome.stop_reason == "user_error"
    assert "3 answers in a row were empty" in outcome.stop_detail
    assert outcome.reward is None
    requests = [json.dumps(request) for request in stub_llm.requests_for(USER)]
    assert (len(requests), len(set(requests))) == (3, 3)  # the same one would have the same answer
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
    said = f"<think>{secret}</think>Thought: {secret}\nUser Response: For me."

    def user(request: dict[str, Any], _place: int) -> Script:
        asked = request["messages"]
        if len(asked) == 1:
            return "true"
        if len(asked) > 4:
            return "###STOP###"
        plain = Answer(content=f"<think>{secret}</think>For me.", message={"reasoning_content": secret})
        return said if strategy == "react" else plain

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
