"""Calling a reward and checking its result."""

import inspect
import threading
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from small_task import BOOKED, GOAL, Speaker, play, small_task

from reward_kit import EvaluateResult, MetricResult, RewardOutput, reward_function
from reward_kit.agent import Usage, agent_eval

JUDGED = """
from reward_kit.agent import Usage


def evaluate(messages, rollout, **kwargs):
    rollout.count_usage(Usage(input_tokens=100, cost=0.5), model="judge/one")
    return {"score": 1.0}
"""


async def judged(folder: Path, reward: Any, **fields: Any) -> Any:
    limits = {name: fields.pop(name) for name in ("reward_timeout", "budget") if name in fields}
    return await play(small_task(folder, reward=reward, **fields), Speaker(), **limits)


async def test_a_reward_gets_the_conversation_the_databases_and_the_row(tmp_path: Path) -> None:
    given: dict[str, Any] = {}

    def evaluate(messages: Any, **kwargs: Any) -> dict[str, Any]:
        given.update(kwargs, messages=messages)
        given["bookings"] = kwargs["db"].execute("SELECT COUNT(*) FROM bookings").scalar_one()
        given["gold bookings"] = kwargs["gold_db"].execute("SELECT COUNT(*) FROM bookings").scalar_one()
        return {"score": 0.5, "reason": "half"}

    finished = await judged(tmp_path, evaluate, actions=BOOKED, end_goal_sql=GOAL, colour="red")
    assert finished.trace.reward == 0.5
    assert given["messages"] == finished.trace.messages
    for name in ("id", "row", "messages", "lines", "tool_calls", "model_calls", "usage", "stop_reason"):
        assert getattr(given["rollout"], name) == getattr(finished.trace, name)
    assert (given["id"], given["end_goal_sql"], given["colour"]) == ("book", GOAL, "red")
    assert given["actions"] == BOOKED
    assert (given["bookings"], given["gold bookings"]) == (0, 1)


async def test_a_reward_that_names_its_arguments_gets_only_these(tmp_path: Path) -> None:
    def evaluate(messages: Any, db: Any, colour: str = "none") -> dict[str, Any]:
        return {"score": 1.0, "reason": colour}

    finished = await judged(tmp_path, evaluate, colour="red", size=3)
    assert finished.trace.result["reason"] == "red"


async def test_a_reward_that_needs_what_the_row_lacks_is_an_error(tmp_path: Path) -> None:
    def evaluate(messages: Any, *, colour: str, **kwargs: Any) -> dict[str, Any]:
        return {"score": 1.0, "reason": colour}

    finished = await judged(tmp_path, evaluate)
    assert finished.trace.reward is None
    assert "needs colour" in finished.trace.error
    assert "test_judge.py:" in finished.trace.error


async def test_what_a_reward_does_to_the_rollout_changes_no_record(tmp_path: Path) -> None:
    def evaluate(messages: Any, *, rollout: Any, **kwargs: Any) -> dict[str, Any]:
        rollout.messages[0].update(content="forged")
        rollout.tool_calls[0].arguments.clear()
        rollout.row.actions.clear()
        rollout.stop_reason = object()
        return {"score": 1.0, "reason": ""}

    def sound(messages: Any, **kwargs: Any) -> dict[str, Any]:
        return {"score": 1.0, "reason": ""}

    def recorded(finished: Any) -> Any:
        rollout = finished.trace
        calls = [(call.name, call.arguments, call.content) for call in rollout.tool_calls]
        spoken = [(message["role"], message["content"]) for message in rollout.messages]
        row = rollout.row.reward_fields()
        return calls, spoken, row, rollout.usage, rollout.turns, rollout.stop_reason

    async def search(rollout: Any) -> str:
        await rollout.call_tool("search_flights", {"origin": "SFO", "dest": "JFK"})
        return "Done"

    tasks = [small_task(tmp_path, reward=reward, actions=BOOKED) for reward in (evaluate, sound)]
    played = [await play(task, Speaker(search), seed=1) for task in tasks]
    assert recorded(played[0]) == recorded(played[1])
    assert played[0].trace.error is None


async def test_a_reward_cannot_write(tmp_path: Path) -> None:
    def evaluate(messages: Any, *, db: Any, **kwargs: Any) -> dict[str, Any]:
        db.execute("DELETE FROM flights")
        return {"score": 1.0, "reason": ""}

    finished = await judged(tmp_path, evaluate)
    assert "read-only" in finished.trace.error
    line = inspect.getsourcelines(evaluate)[1] + 1
    assert f"raised test_judge.py:{line}: " in finished.trace.error
    assert await finished.database.fetch_val("SELECT COUNT(*) FROM flights") == 2


async def test_an_async_reward_holds_the_async_database(tmp_path: Path) -> None:
    async def evaluate(messages: Any, *, db: Any, gold_db: Any, **kwargs: Any) -> EvaluateResult:
        seats = await db.fetch_val("SELECT SUM(seats) FROM flights")
        paid = await gold_db.fetch_val(GOAL)
        metric = MetricResult(score=1.0, reason="seats", is_score_valid=True)
        return EvaluateResult(score=float(seats == 4 and paid), reason="counted", metrics={"seats": metric})

    finished = await judged(tmp_path, evaluate, actions=BOOKED)
    assert (finished.trace.reward, finished.trace.error) == (1.0, None)
    assert finished.trace.result["metrics"]["seats"]["score"] == 1.0
    decorated = await judged(tmp_path, reward_function(evaluate), actions=BOOKED)
    assert (decorated.trace.reward, decorated.trace.error) == (1.0, None)


NAN = float("nan")


@pytest.mark.parametrize(
    ("returned", "fault"),
    [
        (None, "returned None"),
        ({"score": "high", "reason": ""}, "'score' is 'high' (str)"),
        (RewardOutput(score=NAN, reason="", metrics={}), "the score nan (float), not a finite number"),
        (RewardOutput(score=1.0, metrics={"kept": 0.5, "ratio": NAN}), "the metric 'ratio' of nan"),
        ({"score": 1.0, "step_outputs": [{"step_index": 2, "base_reward": NAN}]}, "step 2 of nan"),
        ({"score": 1.0, "is_score_valid": False, "reason": "no\nanswer"}, "score is not valid: no answer"),
        (EvaluateResult(score=1.0, error="it is down", reason="?"), "score is not valid: it is down"),
    ],
    ids=repr,
)
async def test_nonsense_is_reported_with_place_and_value(tmp_path: Path, returned: Any, fault: str) -> None:
    def evaluate(messages: Any, **kwargs: Any) -> Any:
        return returned

    finished = await judged(tmp_path, evaluate)
    assert (finished.trace.reward, finished.trace.result) == (None, None)
    assert finished.trace.error.startswith("test_judge.py:")
    assert fault in finished.trace.error
    assert "\n" not in finished.trace.error


async def test_a_query_without_a_row_is_reported_with_its_line_and_remedy(tmp_path: Path) -> None:
    def evaluate(messages: Any, *, db: Any, **kwargs: Any) -> dict[str, Any]:
        return {"score": db.execute("SELECT 1 WHERE 0").scalar_one()}

    finished = await judged(tmp_path, evaluate)
    line = evaluate.__code__.co_firstlineno + 1
    assert f"test_judge.py:{line}: sqlalchemy.exc.NoResultFound" in finished.trace.error
    assert "scalar()" in finished.trace.error


async def test_a_reward_that_hangs_is_given_up(tmp_path: Path) -> None:
    released = threading.Event()

    def evaluate(messages: Any, **kwargs: Any) -> Any:
        released.wait(30)
        return {"score": 1.0, "reason": ""}

    finished = await judged(tmp_path, evaluate, reward_timeout=0.2)
    released.set()
    assert "took longer than 0.2 s" in finished.trace.error


def test_an_evaluation_tells_the_judges_cost_apart_and_keeps_its_budget(bundle: Bundle) -> None:
    bundle.write("reward.py", JUDGED)
    bundle.rows({"actions": GOLD, "n_rollouts": 4})
    result = agent_eval(bundle.dataset, agent="gold", max_cost=1.0, max_concurrency=1, eval_id="one")
    assert (result.status, len(result.outcomes)) == ("budget", 2)
    assert result.usage["judge"] == Usage(calls=2, input_tokens=200, cost=1.0)
    assert result.usage["agent"].calls == 0
    resumed = agent_eval(resume="one", max_cost=10)
    assert (resumed.usage["judge"].cost, resumed.status) == (2.0, "complete")
