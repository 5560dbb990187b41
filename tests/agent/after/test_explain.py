"""``--explain``: a model says of failed rollouts who was at fault; nothing is asked twice."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from command import run_command
from flight_bundle import GOLD, Bundle
from stored_rollouts import edit, query
from stub_server import Answer

from reward_kit.agent import EvaluationConfig, EvaluationResult, agent_eval, evaluate_async, explain
from reward_kit.agent.after.explainer import Explanations
from reward_kit.agent.models import limits
from reward_kit.agent.store.layout import load_evaluation
from reward_kit.errors import StorageError

ROWS = [{"actions": GOLD, "n_rollouts": 3, "system_prompt": "Book what is asked for."}]
PLAYERS = '''
class BooksTheWrongOne:
    """Right in rollout 0; then for somebody else."""

    async def respond(self, rollout):
        name = "Alice" if rollout.index == 0 else "Bob"
        booked = await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": name})
        await rollout.call_tool("pay_booking", {"booking_id": booked.partition(': "')[2].partition('"')[0]})
        return "Booked for " + name
'''
FILE = Path("runs/evals/mine.db")
BLAMED = json.dumps({"author": "agent", "fault": "wrong_arguments", "sentence": "It booked for Bob."})


@pytest.fixture(autouse=True)
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reward_kit.agent.base.network.LONGEST_WAIT", 0.0)


def options_of(bundle: Bundle, **options: Any) -> dict[str, Any]:
    given = {"agent": bundle.player("BooksTheWrongOne"), "no_sim_user": True, "explain": "openai/judge"}
    return {"dataset": str(bundle.dataset), "eval_id": "mine", "retries": 0, **given, **options}


def run(bundle: Bundle, **options: Any) -> EvaluationResult:
    return agent_eval(**options_of(bundle, **options))


def explanations_of(result: EvaluationResult) -> Explanations:
    assert result.explanations is not None
    return result.explanations


def notes() -> list[dict[str, Any]]:
    return query(FILE, "SELECT id, rollout, json FROM notes WHERE kind = 'explanation' ORDER BY id")


def test_each_failed_rollout_is_judged_over_the_whole_context(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("judge", [BLAMED])
    result = run(bundle)
    assert result.complete
    assert [(one.author, one.fault, one.sentence) for one in explanations_of(result).made] == [
        ("agent", "wrong_arguments", "It booked for Bob.")
    ] * 2
    shown = stub_llm.requests_for("judge")[0]["messages"][1]["content"]
    for part in (
        "You are Alice, a traveller.",
        "Book what is asked for.",
        'create_booking({"flight_id": 1, "passenger": "Alice"})',
        'agent calls: create_booking({"flight_id": 1, "passenger": "Bob"})',
        "booking_id",
        "agent: Booked for Bob",
        "wrong_arguments: create_booking: passenger",
        "first wrong step: 1 (turn 1)",
        '"expected"',
    ):
        assert part in shown
    plain = json.loads(result.results_path.read_text())["explanations"]
    assert plain["authors"] == {"agent": {"count": 2, "percent": 100.0, "faults": {"wrong_arguments": 2}}}
    assert plain["usage"]["calls"] == 2
    assert [one["index"] for one in plain["rollouts"]] == [1, 2]
    assert result.usage["agent"].calls == 0


def test_a_finished_evaluation_is_explained_also_by_another_model(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("judge", [BLAMED])
    stub_llm.script("other", [json.dumps({"author": "user", "fault": "other", "sentence": "x"})])
    run(bundle, explain=None)
    first = agent_eval(resume="mine", explain="openai/judge")
    second = agent_eval(resume="mine", explain="openai/other")
    assert explanations_of(first).authors == {"agent": 2}
    assert explanations_of(second).authors == {"user": 2}
    assert len(notes()) == 4
    passed, failed, _ = (f"mine {one.row_id}#{one.index + 1}" for one in second.outcomes)
    assert "\njudged: user, other: x (openai/other)\n" in run_command("show", failed).out
    assert "judged" not in run_command("show", passed).out


def test_the_model_may_have_settings_of_its_own(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("judge", [BLAMED])
    run(bundle, explain=None, model_args={"top_p": 0.5})
    given = ("--model-arg", "top_p=0.25", "--model-arg", "user=me", "--model-arg", "api_key=sk-CANARY-7f3a9d")
    done = run_command("explain", "mine", "--model", "openai/judge", *given)
    assert done.code == 0, done.err
    assert {(sent["top_p"], sent["user"]) for sent in stub_llm.requests} == {(0.25, "me")}
    assert all("sk-CANARY-7f3a9d" in json.dumps(sent) for sent in stub_llm.request_headers)
    assert b"sk-CANARY" not in FILE.read_bytes()
    assert explain("mine", model="openai/judge", model_args={"top_p": 1}).complete


def test_explanations_outlast_a_run_that_makes_none(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("judge", [BLAMED])
    run(bundle, explain=None)
    explain("mine", model="openai/judge")
    again = agent_eval(resume="mine", n_rollouts=4)
    stored = load_evaluation("mine")
    for result in (again, stored):
        assert (len(explanations_of(result).made), explanations_of(result).missing) == (2, 1)
        assert result.complete  # nobody asked for more
    written = json.loads(stored.results_path.read_text())["explanations"]
    assert (written["made"], written["missing"]) == (2, 1)
    assert written == stored.to_json()["explanations"]


def test_judgements_that_were_paid_count_on_a_resume(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("gpt-4o", [BLAMED])
    paid = explanations_of(run(bundle, explain="openai/gpt-4o")).usage.cost
    assert paid > 0.0
    again = agent_eval(resume="mine", n_rollouts=6, max_cost=paid)
    assert (again.status, len(again.outcomes)) == ("budget", 3)
    asked = len(stub_llm.requests)
    assert explanations_of(explain("mine", model="openai/judge", max_cost=paid)).missing == 2
    assert len(stub_llm.requests) == asked


def test_an_unusable_answer_is_asked_for_once_more(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("judge", ["It was Bob's fault.", BLAMED])
    result = run(bundle, n_rollouts=2)
    assert [one.author for one in explanations_of(result).made] == ["agent"]
    again = stub_llm.requests_for("judge")[1]["messages"][-1]["content"]
    assert "holds no JSON object" in again
    assert explanations_of(result).usage.calls == 2


def test_answers_that_stay_unusable_are_recorded_as_such(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("judge", ["", Answer(content="", finish_reason="length")])
    problem = "the answer holds no JSON object: it is empty (finish reason length)"
    result = run(bundle, n_rollouts=2)
    assert not result.complete  # no answer could be used
    (one,) = explanations_of(result).made
    assert (one.author, one.problem) == (None, f"2 answers could not be used, the last because {problem}")
    assert run(bundle, n_rollouts=2).explanations is not None
    assert len(stub_llm.requests_for("judge")) == 2


def test_answers_that_lead_to_nothing_are_paid_for(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("judge", ["", Answer(status=500)])
    assert explanations_of(run(bundle, n_rollouts=2)).missing == 1
    (used,) = query(FILE, "SELECT kind, rollouts, tokens > 0 AS told FROM usage")
    assert used == {"kind": "explanation", "rollouts": 1, "told": 1}


def test_a_provider_that_is_down_costs_no_results_and_resume_helps(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("judge", [BLAMED])
    stub_llm.fail("judge", Answer(status=500), times=2)
    result = run(bundle)
    assert (result.status, result.planned, len(result.outcomes)) == ("complete", 3, 3)
    assert not result.complete
    assert (len(explanations_of(result).made), explanations_of(result).missing) == (0, 2)
    assert "500" in (explanations_of(result).reason or "")
    again = agent_eval(resume="mine")
    assert again.complete
    assert len(explanations_of(again).made) == 2


def test_after_some_failed_calls_in_a_row_no_more_are_made(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.fail("judge", Answer(status=500), times=99)
    result = run(bundle, n_rollouts=12, max_concurrency=1)
    assert len(stub_llm.requests_for("judge")) == 3
    assert explanations_of(result).missing == 11


def test_a_conversation_that_is_too_long_is_tried_with_shorter_results(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("judge", [BLAMED])
    too_long = Answer(status=400, error="maximum context length exceeded", code="context_length_exceeded")
    stub_llm.fail("judge", too_long)
    result = run(bundle, n_rollouts=2)
    assert [one.author for one in explanations_of(result).made] == ["agent"]


def test_no_more_is_spent_than_allowed(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("judge", [BLAMED])
    result = run(bundle, max_cost=0.0)
    assert stub_llm.requests == []
    assert len(result.outcomes) == 0
    run(bundle, explain=None)
    result = run(bundle, explain="openai/judge", max_cost=0.0)
    assert (explanations_of(result).missing, stub_llm.requests) == (2, [])
    assert "--max-cost" in (explanations_of(result).reason or "")


def test_a_lost_judgement_is_asked_for_again_a_damaged_one_refused(bundle: Bundle, stub_llm: Any) -> None:
    stub_llm.script("judge", [BLAMED])
    run(bundle)
    edit(FILE, "DELETE FROM notes WHERE id = ?", notes()[1]["id"])
    run(bundle)
    assert len(stub_llm.requests_for("judge")) == 3
    edit(FILE, "UPDATE notes SET json = '{' WHERE id = ?", notes()[0]["id"])
    with pytest.raises(StorageError, match=r"mine\.db: .*damaged"):
        run(bundle)


async def test_judgements_made_before_an_interruption_are_kept(bundle: Bundle, stub_llm: Any) -> None:
    slow = Answer(content=BLAMED, delay=20.0)
    stub_llm.script("judge", lambda request, place: slow if len(stub_llm.requests) > 1 else BLAMED)
    config = EvaluationConfig(**options_of(bundle, max_concurrency=1))
    running = asyncio.ensure_future(evaluate_async(config))
    for _ in range(3000):
        if len(stub_llm.requests) == 2:
            break
        await asyncio.sleep(0.01)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    result = load_evaluation("mine")
    assert (len(explanations_of(result).made), explanations_of(result).missing) == (1, 1)
    assert (result.status, len(result.outcomes)) == ("interrupted", 3)


def test_requests_per_minute_hold_for_judges(bundle: Bundle, stub_llm: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(limits, "MINUTE", 0.8)
    arrivals: list[float] = []

    def judge(request: dict[str, Any], place: int) -> str:
        arrivals.append(time.monotonic())
        return BLAMED

    stub_llm.script("judge", judge)
    result = run(bundle, n_rollouts=11, rpm=4)
    assert len(explanations_of(result).made) == len(arrivals) == 10
    # in half of a window: a request that arrives late is followed by the next ones more closely
    assert max(sum(begin <= at < begin + 0.4 for at in arrivals) for begin in arrivals) <= 4
