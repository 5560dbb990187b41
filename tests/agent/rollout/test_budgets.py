"""Budgets of the whole run: what has begun is finished, the rest waits for a larger one."""

from typing import Any

import pytest
from flight_bundle import Bundle
from stub_server import StubServer

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.base.types import Usage
from reward_kit.agent.evaluation.progress import NoProgress
from reward_kit.agent.rollout.rollout import Budget, Rollout

ROWS = [{"id": "a", "n_rollouts": 6}, {"id": "b", "n_rollouts": 6}]
TOKENS = 110
"""Of each answer of the stub."""


@pytest.fixture
def bundle(bundle: Bundle, stub_llm: StubServer) -> Bundle:
    stub_llm.script("gpt-4o-mini", ["How can I help?"])
    stub_llm.script("gpt-3.5-turbo", ["No, thanks. ###STOP###"])
    return bundle


def run(bundle: Bundle, **options: object) -> EvaluationResult:
    models = {"model": "openai/gpt-4o-mini", "sim_model": "openai/gpt-3.5-turbo"}
    return agent_eval(bundle.dataset, **{**models, "eval_id": "mine", **options})


def test_used_up_tokens_end_the_run_and_a_larger_budget_continues_it(bundle: Bundle, stub_llm: Any) -> None:
    first = run(bundle, max_concurrency=1, max_tokens=5 * TOKENS)
    assert (first.status, first.planned, len(first.outcomes)) == ("budget", 12, 3)
    assert "660 of 550 tokens are used (--max-tokens)" in (first.reason or "")
    assert not first.complete
    assert all(outcome.scored for outcome in first.outcomes)  # the third was finished
    assert first.pass_power[1].tasks == 2  # both rows have a rollout, those that were not run count nowhere
    assert set(first.pass_power) >= {1}
    same = run(bundle, max_concurrency=1, max_tokens=5 * TOKENS)
    assert (same.status, len(same.outcomes)) == ("budget", 3)
    assert len(stub_llm.requests) == 6
    more = run(bundle, max_tokens=1000 * TOKENS)
    assert (more.status, len(more.outcomes)) == ("complete", 12)
    assert len(stub_llm.requests) == 24


class Heard(NoProgress):
    """Progress that keeps what happened, in order."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def ended(self, outcome: object, tally: object) -> None:
        self.lines.append("ended")

    def noted(self, text: str) -> None:
        self.lines.append(text)

    @property
    def unpriced(self) -> list[str]:
        return [line for line in self.lines if "--max-cost" in line]


def test_a_model_without_a_price_is_named_as_soon_as_it_answers(bundle: Bundle, stub_llm: StubServer) -> None:
    stub_llm.script("mine", ["How can I help?"])
    heard = Heard()
    options = {"model": "openai/mine", "client": "litellm", "max_concurrency": 1, "progress": heard}
    run(bundle, max_cost=5.0, **options)
    (line,) = heard.unpriced
    assert heard.lines[0] == line
    assert heard.lines.count("ended") == 12
    assert "--max-cost does not see the calls of openai/mine: no price is known" in line
    assert "--max-tokens" in line
    assert "input_cost_per_token" in line
    heard.lines.clear()
    run(bundle, eval_id="no_budget", **options)
    run(bundle, eval_id="tokens", max_tokens=10**6, **options)
    assert heard.unpriced == []


def test_a_budget_says_what_of_it_is_gone() -> None:
    assert Budget(1.0).used_up(1.25, 40) == "1.25 of 1.00 USD are spent (--max-cost)"
    own = Budget(0.004, 40, "--max-rollout")
    assert own.used_up(0.0062, 0) == "0.0062 of 0.0040 USD are spent (--max-rollout-cost)"
    assert own.used_up(0.0, 39) is None
    assert own.used_up(0.0, 40) == "40 of 40 tokens are used (--max-rollout-tokens)"


def test_a_rollout_that_has_used_its_own_tokens_is_judged(bundle: Bundle, stub_llm: StubServer) -> None:
    stub_llm.script("gpt-3.5-turbo", ["And then?"])
    result = run(bundle, n_rollouts=1, max_rollout_tokens=3 * TOKENS, workers=1)
    assert result.status == "complete"
    for outcome in result.outcomes:
        assert (outcome.stop_reason, outcome.steps, outcome.scored) == ("budget", 2, True)
        assert outcome.stop_detail == "330 of 330 tokens are used (--max-rollout-tokens)"
        assert outcome.failure == "other"


def test_money_of_a_rollouts_own_is_spent_also_by_cached_answers(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("gpt-3.5-turbo", ["And then?"])
    ends = []
    for name in ("first", "second"):
        result = run(bundle, n_rollouts=1, max_rollout_cost=0.0002, cache=True, eval_id=name)
        ends += [(outcome.stop_reason, outcome.steps, outcome.stop_detail) for outcome in result.outcomes]
    assert len(set(ends)) == 1
    assert ends[0][0] == "budget"
    assert "USD are spent (--max-rollout-cost)" in (ends[0][2] or "")


def test_what_a_user_counts_is_its_own(bundle: Bundle) -> None:
    async def agent(rollout: Rollout) -> str:
        return "Hello"

    async def user(rollout: Rollout) -> str:
        rollout.count_usage(Usage(calls=1, input_tokens=100), model="mine")
        return "###STOP###"

    usage = run(bundle, agent=agent, user=user, n_rollouts=1).usage
    assert (usage["user"].calls > 0, usage["agent"].calls) == (True, 0)


def test_an_agent_with_models_of_its_own_is_ended_at_its_next_step(bundle: Bundle) -> None:
    async def circles(rollout: Rollout) -> str:
        while True:
            rollout.step()
            rollout.count_usage(Usage(input_tokens=100), model="mine")

    result = run(bundle, agent=circles, user="none", n_rollouts=1, max_rollout_tokens=250)
    assert {(outcome.stop_reason, outcome.steps) for outcome in result.outcomes} == {("budget", 3)}


@pytest.mark.parametrize("tokens", [150, 250])
def test_one_that_takes_no_steps_is_ended_at_its_next_call_or_turn(bundle: Bundle, tokens: int) -> None:
    """As agents behind HTTP and of FastWorkflow, which report what they have used."""

    async def agent(rollout: Rollout) -> str:
        rollout.count_usage(Usage(input_tokens=100), model="mine")
        await rollout.call_tool("search_flights", {"origin": "SFO", "dest": "JFK", "date": "2025-05-20"})
        rollout.count_usage(Usage(input_tokens=100), model="mine")
        return "Go on."

    result = run(bundle, agent=agent, user=lambda rollout: "More.", n_rollouts=1, max_rollout_tokens=tokens)
    ends = {
        (one.stop_reason, one.turns, result.record(one).usage["agent"].input_tokens)
        for one in result.outcomes
    }
    assert ends == {("budget", 2, 200 if tokens == 150 else 300)}
