"""Budgets of the whole run: what has begun is finished, the rest waits for a larger one."""

from __future__ import annotations

from pathlib import Path

import pytest
from flight_bundle import Bundle, flight_bundle
from stub_server import Answer, StubServer

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.completion import Usage
from reward_kit.agent.limits import Budget

TOKENS = 110
"""Of each answer of the stub."""


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub_llm: StubServer) -> Bundle:
    made = flight_bundle(tmp_path)
    made.rows({"id": "a", "n_rollouts": 6}, {"id": "b", "n_rollouts": 6})
    monkeypatch.chdir(tmp_path)
    stub_llm.script("gpt-4o-mini", ["How can I help?"])
    stub_llm.script("gpt-3.5-turbo", ["No, thanks. ###STOP###"])
    return made


def run(bundle: Bundle, **options: object) -> EvaluationResult:
    return agent_eval(
        bundle.dataset,
        **{"model": "openai/gpt-4o-mini", "sim_model": "openai/gpt-3.5-turbo", "eval_id": "mine", **options},
    )


def test_tokens_of_agent_and_user_end_the_run_and_a_larger_budget_continues_it(
    bundle: Bundle, stub_llm: StubServer
) -> None:
    first = run(bundle, max_concurrency=1, max_tokens=5 * TOKENS)
    assert (first.status, first.planned, len(first.outcomes)) == ("budget", 12, 3)
    assert "660 of 550 tokens are used (--max-tokens)" in (first.reason or "")
    assert not first.complete
    assert all(outcome.judged for outcome in first.outcomes)  # the third was finished
    assert first.pass_power[1].tasks == 2  # both rows have a rollout, those that were not run count nowhere
    assert set(first.pass_power) >= {1}
    same = run(bundle, max_concurrency=1, max_tokens=5 * TOKENS)
    assert (same.status, len(same.outcomes)) == ("budget", 3)
    assert len(stub_llm.requests) == 6
    more = run(bundle, max_tokens=1000 * TOKENS)
    assert (more.status, len(more.outcomes)) == ("complete", 12)
    assert len(stub_llm.requests) == 24


def test_those_under_way_are_finished(bundle: Bundle, stub_llm: StubServer) -> None:
    result = run(bundle, max_concurrency=4, max_tokens=1)
    assert result.status == "budget"
    assert 1 <= len(result.outcomes) <= 4
    assert all(outcome.judged for outcome in result.outcomes)


def test_answers_from_the_cache_use_no_tokens(bundle: Bundle) -> None:
    run(bundle, cache=True, eval_id="first")
    again = run(bundle, cache=True, eval_id="second", max_tokens=1)
    assert (again.status, len(again.outcomes)) == ("complete", 12)


def test_a_call_has_a_time_of_its_own(bundle: Bundle, stub_llm: StubServer) -> None:
    stub_llm.script("gpt-4o-mini", [Answer(content="Too late", delay=5.0)])
    result = run(bundle, call_timeout=0.3, retries=0, n_rollouts=1, task_ids="a")
    (outcome,) = result.outcomes
    assert outcome.stop_reason == "infrastructure_error"
    assert "no answer within 0.3 s" in outcome.trouble


def test_a_budget_says_what_of_it_is_gone() -> None:
    budget = Budget(max_cost=1.0)
    budget.count(Usage(input_tokens=50, output_tokens=10, cost=1.5, reused_cost=0.25, reused_tokens=20))
    assert (budget.exhausted, budget.state) == (True, "1.25 of 1.00 USD are spent")
    budget = Budget(max_tokens=40, tokens=39)
    assert not budget.exhausted
    budget.count(Usage(input_tokens=1))
    assert (budget.exhausted, budget.state) == (True, "40 of 40 tokens are used")
