"""An evaluation that goes on where rewards have failed: they are called again, nothing is played again."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle
from planned_agent import Planned, evaluate
from stored_rollouts import edit, query

from reward_kit.agent import EvaluationConfig, EvaluationResult, agent_eval, run_evaluation
from reward_kit.agent.reports.facts import facts_of

BROKEN = "the judge is out"
REWARD = """
from pathlib import Path

from reward_kit import RewardOutput
from reward_kit.agent import Usage


{way} evaluate(messages, db, gold_db, rollout, end_goal_sql, **kwargs):
    rollout.count_usage(Usage(input_tokens=10, cost=0.5), model="judge/one")
    with Path("judged").open("a") as file:
        file.write(rollout.id + " ")
    if rollout.row_id + str(rollout.index) in Path("broken").read_text().split():
        raise RuntimeError("the judge is out")
    paid = {ask}
    return RewardOutput(score=float(paid), reason=f"{{len(messages)}} messages", metrics={{"paid": 0.5}})
"""
PLAN: Mapping[str, list[int]] = {"a": [1, 0, 1], "b": [0, 1, 1]}
USAGE = {"calls": 1, "input_tokens": 100, "cost": 0.25}


@pytest.fixture
def bundle(bundle: Bundle) -> Bundle:
    bundle.write("reward.py", REWARD.format(way="def", ask="db.execute(end_goal_sql).scalar_one()"))
    return bundle


def break_judge(*places: str) -> None:
    """Have the reward fail for these rollouts (row and index), and begin to count its calls."""
    Path("broken").write_text(" ".join(places))
    Path("judged").write_text("")


def judged() -> Counter[str]:
    """How often the reward was called, by rollout."""
    return Counter(Path("judged").read_text().split())


def essence(result: EvaluationResult) -> Any:
    """What must be the same as in an evaluation that nothing has disturbed."""
    passing = {"id", "file", "started", "seconds", "model_seconds", "timed_calls", "attempt", "usage"}
    passing |= {"database", "scored_at"}
    rows = [{k: v for k, v in one.to_json().items() if k not in passing} for one in result.outcomes]
    return sorted(rows, key=lambda row: (row["row_id"], row["index"])), result.pass_power, result.failures


@pytest.mark.parametrize("keep", ["full", "delta"])
def test_it_ends_as_if_no_reward_had_failed(bundle: Bundle, keep: str) -> None:
    if keep == "delta":
        ask = "await db.fetch_val(end_goal_sql)"
        bundle.write("reward.py", REWARD.format(way="async def", ask=ask))
    break_judge()
    undisturbed = evaluate(bundle, "undisturbed", PLAN, usage=USAGE)
    break_judge("a0", "a1", "b0", "b2")
    first = evaluate(bundle, "first", PLAN, usage=USAGE, keep_db=keep)
    assert {one.error and one.error.endswith(BROKEN) for one in first.outcomes} == {None, True}
    assert first.unjudged == {"reward_error": 4}
    assert ("", "retry: reward-kit agent-eval --resume first") in list(facts_of(first))

    break_judge()
    Planned.usage = {"calls": 1, "cost": 1000.0}  # an agent that is asked again would cost this
    resumed = agent_eval(resume="first")
    assert essence(resumed) == essence(undisturbed)
    unjudged = {one.id for one in first.outcomes if not one.scored}
    assert judged() == dict.fromkeys(unjudged, 1)
    assert {one.file for one in resumed.outcomes} == {one.file for one in first.outcomes}
    assert resumed.usage["agent"].cost == 6 * 0.25
    assert resumed.usage["judge"].cost == 10 * 0.5

    again = agent_eval(resume="first")
    assert essence(again) == essence(undisturbed)
    assert again.usage["judge"].cost == 10 * 0.5


def test_one_that_fails_again_stays_unjudged_and_is_judged_the_next_time(bundle: Bundle) -> None:
    break_judge("a0", "a1")
    first = evaluate(bundle, "first", PLAN)
    break_judge("a1")
    second = agent_eval(resume="first")
    assert second.unjudged == {"reward_error": 1}
    assert len(judged()) == 2
    break_judge()
    third = agent_eval(resume="first")
    assert third.unjudged == {}
    assert set(judged()) == {one.id for one in second.outcomes if not one.scored}
    assert {one.id for one in third.outcomes} == {one.id for one in first.outcomes}
    assert third.usage["judge"].calls == 6 + 2 + 1


@pytest.mark.parametrize("loss", ["not kept", "database", "damaged database", "trajectory"])
def test_what_is_not_there_any_more_is_played_again(bundle: Bundle, loss: str) -> None:
    break_judge("a0")
    first = evaluate(bundle, "first", {"a": [1, 1]}, keep_db="none" if loss == "not kept" else None)
    failed = next(one for one in first.outcomes if not one.scored)
    path = first.folder / (failed.database or "")
    if loss == "database":
        path.unlink()
    if loss == "damaged database":
        path.write_bytes(b"x" * 100)
    if loss == "trajectory":
        edit(first.log_path, "DELETE FROM traces WHERE rollout = ?", failed.id)
    break_judge()
    resumed = agent_eval(resume="first")
    assert [one.reward for one in resumed.outcomes] == [1.0, 1.0]
    assert failed.id not in {one.id for one in resumed.outcomes}


@pytest.mark.parametrize("workers", [0, 2])
def test_new_rollouts_are_played_beside(bundle: Bundle, workers: int) -> None:
    break_judge("a0", "b1")
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 2}, {"id": "b", "actions": GOLD, "n_rollouts": 2})
    first = agent_eval(bundle.dataset, agent="gold", eval_id="first")
    break_judge()
    resumed = agent_eval(resume="first", n_rollouts=4, workers=workers)
    assert [one.reward for one in resumed.outcomes] == [1.0] * 8
    assert {one.id for one in first.outcomes} < {one.id for one in resumed.outcomes}
    assert set(judged().values()) == {1}
    assert len(judged()) == 6
    assert resumed.usage["judge"].calls == 10


def test_nothing_is_judged_once_the_budget_is_used_up(bundle: Bundle) -> None:
    break_judge("a0", "a1", "a2")
    first = evaluate(bundle, "first", PLAN)
    break_judge()
    resumed = agent_eval(resume="first", max_cost=first.usage["judge"].cost, max_concurrency=1)
    assert (resumed.status, resumed.unjudged, judged()) == ("budget", {"reward_error": 3}, {})
    resumed = agent_eval(resume="first", max_cost=first.usage["judge"].cost + 0.75, max_concurrency=1)
    assert (resumed.status, resumed.unjudged, len(judged())) == ("budget", {"reward_error": 1}, 2)


async def test_an_interruption_loses_nothing(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    break_judge("a0", "a1", "b0")
    bundle.rows({"id": "a", "actions": GOLD, "n_rollouts": 2}, {"id": "b", "actions": GOLD, "n_rollouts": 2})
    config = EvaluationConfig(dataset=str(bundle.dataset), agent="gold", eval_id="first")
    await run_evaluation(config)
    break_judge()
    saved = asyncio.Event()
    append = asyncio.get_running_loop().call_soon_threadsafe
    evaluation = asyncio.ensure_future(run_evaluation(config, progress=Ended(lambda: append(saved.set))))
    await saved.wait()
    evaluation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await evaluation
    done = len(judged())
    resumed = await run_evaluation(config)
    assert [one.reward for one in resumed.outcomes] == [1.0] * 4
    assert 3 <= sum(judged().values()) <= 3 + done
    (stored,) = query(resumed.log_path, "SELECT count(*) AS n, count(scored_at) AS again FROM rollouts")
    assert stored == {"n": 4, "again": 3}


class Ended:
    """Progress that tells of the first rollout that ends."""

    def __init__(self, tell: Any) -> None:
        self.started = self.closed = lambda _: None
        self.ended = lambda _, __: tell()
