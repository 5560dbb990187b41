"""How a reward is called, and what may come back."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, ROW, flight_bundle
from small_task import BOOKED, GOAL, play, small_task

from reward_kit import EvaluateResult, MetricResult, RewardOutput, reward_function
from reward_kit.agent import Usage, agent_eval, judge, load_rollout
from reward_kit.agent.comparing import compare
from reward_kit.agent.judge import call_reward
from reward_kit.agent.limits import Budget
from reward_kit.agent.runs.stored_evaluation import load_evaluation

LINES = """
def evaluate(messages, rollout, **kwargs):
    return {"score": 1.0, "reason": str([tuple(line) for line in rollout.lines])}
"""
JUDGED = """
from reward_kit.agent import Usage


def evaluate(messages, rollout, **kwargs):
    rollout.count_usage(Usage(input_tokens=100, cost=0.5), model="judge/one")
    return {"score": 1.0}
"""


class Speaker:
    async def respond(self, rollout: Any) -> str:
        return "Done"


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
    assert finished.reward == 0.5
    assert given["messages"] == finished.rollout.messages
    for name in (
        "id",
        "row",
        "messages",
        "lines",
        "tool_calls",
        "model_calls",
        "usage",
        "stop_reason",
        "gold",
    ):
        assert getattr(given["rollout"], name) == getattr(finished.rollout, name)
    assert (given["id"], given["end_goal_sql"], given["colour"]) == ("book", GOAL, "red")
    assert given["actions"] == BOOKED
    assert (given["bookings"], given["gold bookings"]) == (0, 1)


@dataclass
class Judge:
    """Cannot be hashed, as most objects of dataclasses."""

    score: float

    def __call__(self, messages: Any, **kwargs: Any) -> dict[str, Any]:
        return {"score": self.score, "reason": "as ever"}


async def test_a_reward_may_be_an_object_that_cannot_be_hashed(tmp_path: Path) -> None:
    assert (await judged(tmp_path, Judge(0.25))).reward == 0.25


async def test_of_rollouts_that_end_together_one_has_its_arguments_in_memory(tmp_path: Path) -> None:
    held: weakref.WeakSet[Counted] = weakref.WeakSet()
    most = 0

    class Counted:
        def __init__(self) -> None:
            nonlocal most
            held.add(self)
            most = max(most, len(held))

    def given() -> dict[str, Any]:
        return {"messages": [], "counted": Counted()}

    def evaluate(messages: Any, counted: Any) -> dict[str, Any]:
        return {"score": 1.0, "reason": ""}

    await asyncio.gather(*(call_reward(evaluate, given) for _ in range(50)))
    assert 0 < most < 10


async def test_a_reward_that_names_its_arguments_gets_only_these(tmp_path: Path) -> None:
    def evaluate(messages: Any, db: Any, colour: str = "none") -> dict[str, Any]:
        return {"score": 1.0, "reason": colour}

    finished = await judged(tmp_path, evaluate, colour="red", size=3)
    assert finished.result.reason == "red"


async def test_a_reward_that_needs_what_the_row_lacks_is_told_so(tmp_path: Path) -> None:
    def evaluate(messages: Any, *, colour: str, **kwargs: Any) -> dict[str, Any]:
        return {"score": 1.0, "reason": colour}

    finished = await judged(tmp_path, evaluate)
    assert finished.reward is None
    assert "needs colour" in finished.error
    assert "test_judge.py:" in finished.error


async def test_changing_the_messages_does_not_change_the_record(tmp_path: Path) -> None:
    def evaluate(messages: Any, **kwargs: Any) -> dict[str, Any]:
        messages[0]["content"] = "forged"
        messages.clear()
        return {"score": 1.0, "reason": ""}

    finished = await judged(tmp_path, evaluate)
    assert finished.rollout.messages[0]["content"] == "Book me a flight"


@pytest.mark.parametrize(
    "damage",
    [
        lambda rollout: rollout.messages.clear(),
        lambda rollout: rollout.messages[0].update(content="forged"),
        lambda rollout: rollout.tool_calls.clear(),
        lambda rollout: rollout.tool_calls[0].arguments.clear(),
        lambda rollout: setattr(rollout, "tool_calls", 5),
        lambda rollout: setattr(rollout, "stop_reason", object()),
        lambda rollout: setattr(rollout, "task", None),
        lambda rollout: rollout.task.row.metadata.update(x=1),
        lambda rollout: rollout.row.actions.clear(),
        lambda rollout: rollout.usage.clear(),
        lambda rollout: rollout.hear("forged"),
        lambda rollout: rollout.begin_turn(),
    ],
)
async def test_what_a_reward_does_to_the_rollout_changes_no_record(tmp_path: Path, damage: Any) -> None:
    def evaluate(messages: Any, *, rollout: Any, **kwargs: Any) -> dict[str, Any]:
        damage(rollout)
        return {"score": 1.0, "reason": ""}

    def sound(messages: Any, **kwargs: Any) -> dict[str, Any]:
        return {"score": 1.0, "reason": ""}

    def recorded(finished: Any) -> Any:
        rollout = finished.rollout
        calls = [(call.name, call.arguments, call.content) for call in rollout.tool_calls]
        spoken = [(message["role"], message["content"]) for message in rollout.messages]
        row = rollout.row.reward_fields()
        return calls, spoken, row, rollout.usage, rollout.turns, rollout.stop_reason

    class Searching(Speaker):
        async def respond(self, rollout: Any) -> str:
            await rollout.call_tool("search_flights", {"origin": "SFO", "dest": "JFK"})
            return "Done"

    played = [
        await play(small_task(tmp_path, reward=reward, actions=BOOKED), Searching(), seed=1)
        for reward in (evaluate, sound)
    ]
    assert recorded(played[0]) == recorded(played[1])
    assert played[0].error is None


async def test_a_reward_cannot_write_through_the_rollout(tmp_path: Path) -> None:
    def evaluate(messages: Any, *, rollout: Any, **kwargs: Any) -> dict[str, Any]:
        rollout.database.sync.execute("DELETE FROM flights")
        return {"score": 1.0, "reason": ""}

    finished = await judged(tmp_path, evaluate)
    assert "only read" in finished.error
    assert await finished.database.fetch_val("SELECT COUNT(*) FROM flights") == 2


async def test_a_reward_that_loses_what_it_was_given_fails_alone(tmp_path: Path) -> None:
    def evaluate(messages: Any, *, rollout: Any, **kwargs: Any) -> dict[str, Any]:
        del rollout.stop_reason
        return {"score": 1.0, "reason": rollout.stop_reason}

    finished = await judged(tmp_path, evaluate)
    assert "has no attribute 'stop_reason'" in finished.error
    assert finished.rollout.stop_reason == "agent_done"


@pytest.mark.parametrize("then", ["return", "wait"])
async def test_an_async_reward_that_cancels_itself_fails_alone(tmp_path: Path, then: str) -> None:
    async def evaluate(messages: Any, **kwargs: Any) -> dict[str, Any]:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        if then == "wait":
            await asyncio.sleep(60)
        return {"score": 1.0, "reason": ""}

    finished = await judged(tmp_path, evaluate)
    assert finished.reward is None
    assert "cancelled the task that it runs in" in finished.error


async def test_an_async_reward_that_does_not_heed_the_end_of_its_time_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "CANCELLATION_GRACE", 0.05)
    released = asyncio.Event()

    async def evaluate(messages: Any, **kwargs: Any) -> dict[str, Any]:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        return {"score": 1.0, "reason": ""}

    finished = await judged(tmp_path, evaluate, reward_timeout=0.05)
    released.set()
    assert "took longer than 0.05 s" in finished.error


async def test_a_reward_cannot_write(tmp_path: Path) -> None:
    def evaluate(messages: Any, *, db: Any, **kwargs: Any) -> dict[str, Any]:
        db.execute("DELETE FROM flights")
        return {"score": 1.0, "reason": ""}

    finished = await judged(tmp_path, evaluate)
    assert "read-only" in finished.error
    line = inspect.getsourcelines(evaluate)[1] + 1
    assert f"raised test_judge.py:{line}: " in finished.error
    assert await finished.database.fetch_val("SELECT COUNT(*) FROM flights") == 2


async def test_a_decorated_reward_works(tmp_path: Path) -> None:
    @reward_function
    def evaluate(messages: Any, *, db: Any, **kwargs: Any) -> RewardOutput:
        paid = db.execute(GOAL).scalar_one()
        return RewardOutput(
            score=float(paid), reason="no", metrics={"task_complete": {"score": float(paid), "reason": "no"}}
        )

    finished = await judged(tmp_path, evaluate)
    assert (finished.reward, finished.error) == (0.0, None)
    assert finished.result.metrics["task_complete"]["score"] == 0.0


async def test_an_async_reward_holds_the_async_database(tmp_path: Path) -> None:
    async def evaluate(messages: Any, *, db: Any, gold_db: Any, **kwargs: Any) -> EvaluateResult:
        seats = await db.fetch_val("SELECT SUM(seats) FROM flights")
        paid = await gold_db.fetch_val(GOAL)
        metric = MetricResult(score=1.0, reason="seats", is_score_valid=True)
        return EvaluateResult(score=float(seats == 4 and paid), reason="counted", metrics={"seats": metric})

    finished = await judged(tmp_path, evaluate, actions=BOOKED)
    assert (finished.reward, finished.error) == (1.0, None)
    assert isinstance(finished.result, EvaluateResult)
    decorated = await judged(tmp_path, reward_function(evaluate), actions=BOOKED)
    assert (decorated.reward, decorated.error) == (1.0, None)


@pytest.mark.parametrize(
    ("result", "told"),
    [
        ({"score": 1.0, "is_score_valid": False, "reason": "no\nanswer"}, "is not valid: no answer"),
        ({"score": 1.0, "error": "the judge is down", "reason": "?"}, "is not valid: the judge is down"),
        ({"score": 0.0, "is_score_valid": False}, "is not valid"),
    ],
)
@pytest.mark.parametrize("form", [dict, lambda result: EvaluateResult(**result)], ids=["dict", "result"])
async def test_a_score_that_says_itself_that_it_is_not_valid_counts_as_none(
    tmp_path: Path, form: Any, result: dict[str, Any], told: str
) -> None:
    def evaluate(messages: Any, **kwargs: Any) -> Any:
        return form(result)

    finished = await judged(tmp_path, evaluate)
    assert finished.reward is None
    assert finished.error.endswith(f"says that its score {told}")


@pytest.mark.parametrize(
    "returned",
    [None, "good", 0.5, (1.0, "good"), [], {}, {"score": "high", "reason": ""}, {"reason": "no score"}],
    ids=repr,
)
async def test_nonsense_is_told_with_the_place_and_what_came_back(tmp_path: Path, returned: Any) -> None:
    def evaluate(messages: Any, **kwargs: Any) -> Any:
        return returned

    finished = await judged(tmp_path, evaluate)
    assert (finished.reward, finished.result) == (None, None)
    assert finished.error.startswith("test_judge.py:")
    assert "returned" in finished.error


@pytest.mark.parametrize("decorate", [lambda reward: reward, reward_function], ids=["plain", "decorated"])
@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("great", "returned 'great' (str), expected an EvaluateResult, RewardOutput or a dict with 'score'"),
        ({}, "returned {} (dict), expected an EvaluateResult, RewardOutput or a dict with 'score'"),
        ({"score": "high"}, "returned a dict that is no result: 'score' is 'high' (str): "),
        (
            {"score": 1.0, "metrics": {"paid": {"score": 1.0}}},
            "returned a dict that is no result: 'metrics.paid.reason' is missing",
        ),
    ],
)
async def test_nonsense_is_told_in_one_line(tmp_path: Path, returned: Any, said: str, decorate: Any) -> None:
    def evaluate(messages: Any, **kwargs: Any) -> Any:
        return returned

    finished = await judged(tmp_path, decorate(evaluate))
    assert said in finished.error
    assert "\n" not in finished.error
    assert "pydantic" not in finished.error


@pytest.mark.parametrize("score", [float("nan"), float("inf"), -float("inf")])
async def test_a_score_is_a_finite_number(tmp_path: Path, score: float) -> None:
    def evaluate(messages: Any, **kwargs: Any) -> Any:
        return RewardOutput(score=score, reason="", metrics={})

    finished = await judged(tmp_path, evaluate)
    assert finished.reward is None
    assert "finite" in finished.error


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
async def test_metrics_and_rewards_of_steps_are_finite_numbers(tmp_path: Path, number: float) -> None:
    async def told(result: Any) -> str:
        def evaluate(messages: Any, **kwargs: Any) -> Any:
            return result

        finished = await judged(tmp_path, evaluate)
        assert finished.reward is None
        return str(finished.error)

    metric = await told(RewardOutput(score=1.0, metrics={"kept": 0.5, "ratio": number}))
    assert f"returned the metric 'ratio' of {number}, not a finite number. Leave it out" in metric
    step = await told({"score": 1.0, "step_outputs": [{"step_index": 2, "base_reward": number}]})
    assert f"returned the base_reward of step 2 of {number}" in step


async def test_a_query_without_a_row_is_told_with_its_line_and_what_to_ask_instead(tmp_path: Path) -> None:
    def evaluate(messages: Any, *, db: Any, **kwargs: Any) -> dict[str, Any]:
        return {"score": db.execute("SELECT 1 WHERE 0").scalar_one()}

    finished = await judged(tmp_path, evaluate)
    line = evaluate.__code__.co_firstlineno + 1
    assert f"test_judge.py:{line}: sqlalchemy.exc.NoResultFound" in finished.error
    assert "scalar()" in finished.error


async def test_the_line_that_raised_is_named(tmp_path: Path) -> None:
    def evaluate(messages: Any, *, db: Any, **kwargs: Any) -> Any:
        return db.execute("SELECT 1 FROM nowhere")

    finished = await judged(tmp_path, evaluate)
    assert "nowhere" in finished.error
    assert finished.error.startswith("test_judge.py:")


@pytest.mark.parametrize(
    "error", [ValueError("no idea"), SystemExit(2), StopIteration(), asyncio.TimeoutError()]
)
async def test_whatever_a_reward_raises_is_told(tmp_path: Path, error: BaseException) -> None:
    def evaluate(messages: Any, **kwargs: Any) -> Any:
        raise error

    finished = await judged(tmp_path, evaluate)
    assert finished.reward is None
    assert "raised" in finished.error


async def test_a_reward_that_hangs_is_given_up(tmp_path: Path) -> None:
    released = threading.Event()

    def evaluate(messages: Any, **kwargs: Any) -> Any:
        released.wait(30)
        return {"score": 1.0, "reason": ""}

    finished = await judged(tmp_path, evaluate, reward_timeout=0.2)
    released.set()
    assert "took longer than 0.2 s" in finished.error


async def test_a_reward_that_waits_does_not_hold_up_others(tmp_path: Path) -> None:
    meeting = threading.Barrier(3, timeout=20)

    def evaluate(messages: Any, **kwargs: Any) -> Any:
        meeting.wait()
        return {"score": 1.0, "reason": ""}

    finished = await asyncio.gather(*(judged(_folder(tmp_path, name), evaluate) for name in "abc"))
    assert [each.reward for each in finished] == [1.0, 1.0, 1.0]


def _folder(parent: Path, name: str) -> Path:
    (parent / name).mkdir()
    return parent / name


async def test_a_slow_async_reward_is_given_up_as_well(tmp_path: Path) -> None:
    async def evaluate(messages: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(30)

    started = time.monotonic()
    finished = await judged(tmp_path, evaluate, reward_timeout=0.2)
    assert "took longer" in finished.error
    assert time.monotonic() - started < 25


def asks_a_model(rollout: Any, **_: Any) -> dict[str, Any]:
    for cost in (0.25, 0.5):
        rollout.count_usage(
            Usage(input_tokens=90, output_tokens=10, cost=cost), model="judge/one", seconds=2.0
        )
    assert rollout.usage["judge"].calls == 2
    return {"score": 1.0}


async def test_a_reward_counts_the_models_that_it_asks_as_the_judges(tmp_path: Path) -> None:
    budget = Budget(max_cost=1.0)
    finished = await judged(tmp_path, asks_a_model, budget=budget)
    rollout = finished.rollout
    assert (finished.reward, rollout.usage["judge"]) == (1.0, Usage(2, 180, output_tokens=20, cost=0.75))
    assert [(call.role, call.model, call.seconds) for call in rollout.model_calls] == [
        ("judge", "judge/one", 2.0)
    ] * 2
    assert (budget.spent, budget.tokens) == (0.75, 200)


async def test_what_a_reward_spent_counts_though_it_failed(tmp_path: Path) -> None:
    def evaluate(rollout: Any, **_: Any) -> dict[str, Any]:
        rollout.count_usage(Usage(cost=0.5), model="judge/one")
        raise ValueError("no verdict")

    finished = await judged(tmp_path, evaluate)
    assert "no verdict" in finished.error
    assert finished.rollout.usage["judge"] == Usage(calls=1, cost=0.5)


@pytest.mark.parametrize(
    ("usage", "fault"),
    [
        ({"input_tokens": 3}, "count_usage() takes a Usage, not a dict"),
        (Usage(cost="1"), "Usage.cost is '1', not a number"),  # type: ignore[arg-type]
        (Usage(cost=float("nan")), "Usage.cost is nan"),
        (Usage(output_tokens=-1), "Usage.output_tokens is -1"),
        (Usage(unpriced_calls=True), "Usage.unpriced_calls is True"),
    ],
)
async def test_a_usage_that_would_spoil_the_sums_is_the_rewards_fault(
    tmp_path: Path, usage: Any, fault: str
) -> None:
    finished = await judged(tmp_path, lambda rollout, **_: rollout.count_usage(usage, model="judge/one"))
    assert fault in finished.error
    assert "judge" not in finished.rollout.usage


async def test_a_time_that_is_none_is_the_rewards_fault_and_any_name_of_a_model_can_be_stored(
    tmp_path: Path,
) -> None:
    def counts(rollout: Any, seconds: float) -> dict[str, Any]:
        rollout.count_usage(Usage(), model="judge\ud800", seconds=seconds)
        return {"score": 1.0}

    never = await judged(tmp_path, lambda rollout, **_: counts(rollout, float("nan")))
    assert "seconds is nan, not a number from 0" in never.error
    finished = await judged(tmp_path, lambda rollout, **_: counts(rollout, 1.5))
    (call,) = finished.rollout.model_calls
    assert call.model.encode().startswith(b"judge")


async def test_a_reward_that_asks_the_agents_model_is_told_how_it_goes(tmp_path: Path) -> None:
    async def evaluate(rollout: Any, **_: Any) -> Any:
        return await rollout.complete([{"role": "user", "content": "Was it polite?"}])

    finished = await judged(tmp_path, evaluate)
    assert (
        "asks models with a client of its own, and counts that with rollout.count_usage()" in finished.error
    )


def test_an_evaluation_tells_the_judges_cost_apart_and_keeps_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    bundle.write("reward.py", JUDGED)
    bundle.rows({"actions": GOLD, "n_rollouts": 4})
    result = agent_eval(str(bundle.dataset), agent="gold", max_cost=1.0, max_concurrency=1, eval_id="one")
    assert (result.status, len(result.outcomes)) == ("budget", 2)
    assert result.usage["judge"] == Usage(calls=2, input_tokens=200, cost=1.0)
    assert result.usage["agent"].calls == 0
    assert result.averages.model_call_seconds is None
    assert result.to_json()["usage"]["judge"]["cost"] == 1.0
    stored = load_evaluation("one")
    assert stored.usage["judge"].cost == 1.0
    resumed = agent_eval(resume="one", max_cost=10)
    assert (resumed.usage["judge"].cost, resumed.status) == (2.0, "complete")
    with load_rollout(tmp_path / "runs" / resumed.outcomes[0].file) as record:
        assert [call.role for call in record.model_calls] == ["judge"]
        arguments = record.reward_arguments()
        arguments["rollout"].count_usage(Usage(cost=1.0), model="judge/one")
        assert record.usage["judge"].cost == 0.5
    found = compare("one", "one")
    assert {measure.name: measure.a for measure in found.measures}["judge tokens"] == 100
    assert {measure.name: measure.a for measure in found.measures}["cost"] == 0.5


def test_without_a_judge_no_usage_of_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    bundle.rows({"actions": GOLD, "n_rollouts": 1})
    assert list(agent_eval(str(bundle.dataset), agent="gold").usage) == ["agent", "user"]


def test_a_reward_gets_the_same_lines_from_a_rollout_and_from_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    bundle.write("reward.py", LINES)
    bundle.rows({"actions": GOLD, "outputs": ["06:30"], "n_rollouts": 1, "system_prompt": "Be brief."})
    (outcome,) = agent_eval(str(bundle.dataset), agent="gold").outcomes
    with load_rollout(tmp_path / "runs" / outcome.file) as record:
        assert record.result is not None
        assert record.result["reason"] == str([tuple(line) for line in record.lines])
        assert record.lines == [("user", ROW["initial_messages"][0]["content"]), ("agent", "06:30")]


SEATS = """
from reward_kit.agent import ToolRegistry

R = ToolRegistry("seats", database="{mode}")


@R.tool(parameters={{"seats": int}})
async def leave_seats(seats, db):
    await db.execute("UPDATE flights SET seats_available = :seats", {{"seats": seats}})
"""
ASKS_MUCH = """
MANY = "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c LIMIT 100000) SELECT count(*) FROM c"


{way} evaluate(messages, db, gold_db, **kwargs):
    for _ in range(4):
        {ask}
    return {{"score": float(db.equals(gold_db)), "reason": str(gold_db.changes().lines())}}
"""


@pytest.mark.parametrize(("mode", "keep"), [("overlay", "full"), ("overlay", "none"), ("file", "full")])
@pytest.mark.parametrize(
    ("way", "ask"), [("def", "gold_db.execute(MANY)"), ("async def", "await gold_db.fetch_val(MANY)")]
)
def test_rewards_of_a_row_ask_its_gold_state_side_by_side(
    way: str, ask: str, mode: str, keep: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    bundle.write("reward.py", ASKS_MUCH.format(way=way, ask=ask))
    bundle.write("tools.py", SEATS.format(mode=mode))
    bundle.rows({"actions": [{"name": "leave_seats", "arguments": {"seats": 3}}], "n_rollouts": 20})
    result = agent_eval(bundle.dataset, agent="gold", keep_db=keep)
    assert [(outcome.reward, outcome.error) for outcome in result.outcomes] == [(1.0, None)] * 20
    with load_rollout(tmp_path / "runs" / result.outcomes[0].file) as record:
        assert record.result is not None
        assert "seats_available: 4 -> 3" in record.result["reason"]


def test_a_reward_is_let_go_when_its_evaluation_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bundle = flight_bundle(tmp_path)
    bundle.write("reward.py", "class Loaded: pass\n\nLOADED = Loaded()\n\n" + LINES)
    bundle.rows({"actions": GOLD, "n_rollouts": 1})
    for _ in range(3):
        assert agent_eval(bundle.dataset, agent="gold").complete
    gc.collect()
    kept = [one for one in gc.get_objects() if type(one).__name__ == "Loaded"]
    assert len(kept) <= 1  # an idle thread may hold on to its last one
