"""Faults of the simulated user in an evaluation: told, blamed for failures, and played again if asked for."""

from collections.abc import Callable
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from stored_rollouts import edit, query

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.bundles.task import rollout_seed

Run = Callable[..., EvaluationResult]
PROMPT = "You are Alice, alice@example.com. You want flight 1."
ROWS = [{"actions": GOLD, "n_rollouts": 2, "initial_messages": [], "sim_user_prompt": PROMPT}]
PLAYERS = '''
from collections import Counter

from reward_kit.agent.base.types import Usage


class Books:
    """Books for whoever is named; without a name it does nothing."""

    async def respond(self, rollout):
        if "alice@example.com" not in rollout.lines[-1].text:
            return "There is no such customer."
        booked = await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice"})
        await rollout.call_tool("pay_booking", {"booking_id": booked.partition(': "')[2].partition('"')[0]})
        return "Booked."


class Costs(Books):
    """Every turn costs a dollar."""

    async def respond(self, rollout):
        rollout.count_usage(Usage(calls=1, cost=1.0), model="dear")
        return await super().respond(rollout)


class Sorry:
    async def respond(self, rollout):
        return "No."


class Forgets:
    """Gives a wrong address in the first attempts at a rollout, as many as ``wrong``."""

    wrong = 1
    attempts = Counter()

    async def respond(self, rollout):
        kind = type(self)
        if len(rollout.lines) == 0:
            kind.attempts[rollout.index] += 1
            right = kind.attempts[rollout.index] > kind.wrong
            return "I am alice@example.com" if right else "I am bob@example.com"
        return "###STOP###"


class NeverRemembers(Forgets):
    wrong = 99
    attempts = Counter()


class CrashesThenForgets(Forgets):
    attempts = Counter()

    async def respond(self, rollout):
        kind = type(self)
        if kind.attempts[rollout.index] == 0:
            kind.attempts[rollout.index] = -1
            raise RuntimeError("no line")
        if kind.attempts[rollout.index] == -1:
            kind.attempts[rollout.index] = 0
        return await super().respond(rollout)
'''


@pytest.fixture
def run(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr("reward_kit.agent.base.network.LONGEST_WAIT", 0.0)

    def evaluate(kind: str, agent: str = "Books", **options: Any) -> EvaluationResult:
        players = {"agent": bundle.player(agent), "user": bundle.player(kind)}
        return agent_eval(bundle.dataset, **players, eval_id="mine", **options)

    return evaluate


def attempts_of(result: EvaluationResult, index: int = 0) -> list[dict[str, Any]]:
    return query(result.log_path, "SELECT * FROM rollouts WHERE idx = ? ORDER BY seq", index)


def test_a_failure_with_a_decisive_fault_is_the_users_and_still_counts(run: Run) -> None:
    result = run("NeverRemembers")
    assert (result.score, result.failures, result.complete) == (0.0, {"user_error": 2}, True)
    outcome = result.outcomes[0]
    assert (outcome.stop_reason, outcome.scored) == ("user_stop", True)
    assert outcome.user_faults == ["contradicts_instruction"]
    assert "contradicts_instruction (turn 0)" in (outcome.failure_detail or "")
    record = result.record(outcome)
    assert record.user_faults is not None
    assert record.user_faults[0]["decisive"] is True
    assert record.failure is not None
    assert record.failure["expected"]["name"] == "create_booking"
    kinds = {"contradicts_instruction": 2}
    assert result.user_faults.to_json() == {"simulated": 2, "faulty": 2, "kinds": kinds}


def test_a_rollout_whose_user_misbehaved_is_played_again(run: Run) -> None:
    result = run("Forgets", retry_user_errors=2)
    assert (result.score, result.user_faults.faulty) == (1.0, 0)
    first, second = attempts_of(result)
    assert [(line["attempt"], line["final"]) for line in (first, second)] == [(0, False), (1, True)]
    assert second["seed"] == rollout_seed(10, "flight.booking.001", 0, 1)


def test_a_failure_of_the_agents_own_is_not_played_again(run: Run) -> None:
    result = run("Forgets", agent="Sorry", retry_user_errors=3)
    assert [line["final"] for line in attempts_of(result)] == [False, True]
    assert result.failures == {"partially_completed": 2}


def test_crashes_and_faults_of_the_user_have_their_own_numbers_of_retries(run: Run) -> None:
    result = run("CrashesThenForgets", retry_user_errors=1, retries=1, n_rollouts=1)
    ends = [(line["stop_reason"], line["final"]) for line in attempts_of(result)]
    assert ends == [("user_error", False), ("user_stop", False), ("user_stop", True)]
    assert len({line["seed"] for line in attempts_of(result)}) == 3
    assert result.score == 1.0


def test_a_crash_of_an_earlier_run_takes_no_retry_from_a_resumed_one(run: Run) -> None:
    result = run("NeverRemembers", retry_user_errors=1, n_rollouts=1)
    edit(result.log_path, "DELETE FROM rollouts WHERE final")
    edit(result.log_path, "UPDATE rollouts SET final = 1, stop_reason = 'user_error', reward = NULL")
    again = run("NeverRemembers", retry_user_errors=1, n_rollouts=1)
    ends = [(line["stop_reason"], line["reward"]) for line in attempts_of(again)]
    assert ends == [("user_error", None), ("user_stop", 0.0), ("user_stop", 0.0)]


def test_what_was_interrupted_between_attempts_goes_on_with_the_next(run: Run) -> None:
    result = run("NeverRemembers", retry_user_errors=1, n_rollouts=1)
    edit(result.log_path, "DELETE FROM rollouts WHERE final")
    again = run("NeverRemembers", retry_user_errors=1, n_rollouts=1)
    assert [(it["attempt"], it["final"]) for it in attempts_of(again)] == [(0, False), (1, True)]
    assert len(again.outcomes) == 1
    assert len(run("NeverRemembers", retry_user_errors=1, n_rollouts=1).outcomes) == 1
    assert len(attempts_of(again)) == 2


def test_no_rollout_is_played_again_once_the_money_is_spent(run: Run) -> None:
    result = run("NeverRemembers", agent="Costs", retry_user_errors=5, max_cost=1.5, n_rollouts=1)
    assert [line["final"] for line in attempts_of(result)] == [False, True]
    assert (result.status, result.planned) == ("complete", 1)
