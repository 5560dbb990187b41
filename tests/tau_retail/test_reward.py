"""The reward: the benchmark's verdict on final data and on what was said."""

import random
from types import SimpleNamespace
from typing import Any

import pytest
from call_sequences import CallMaker
from reference import private, run, state_hash
from thorough import often

from reward_kit import EvaluateResult
from tau_retail_task.reward import evaluate
from tau_retail_task.tools import R

SHIRT = "#W1080318"

CANCEL = ("cancel_pending_order", {"order_id": SHIRT, "reason": "no longer needed"})


def say(*lines: str) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": line} for line in lines]


@pytest.fixture
def states(base: Any) -> Any:
    """``await states(calls, ...)``: a read-only view of the data after each list of calls."""
    forks = []

    async def after(*sequences: list[tuple[str, dict[str, Any]]]) -> list[Any]:
        views = []
        for calls in sequences:
            fork = base.fork()
            forks.append(fork)
            for name, arguments in calls:
                await R.execute_tool(name, arguments, db=fork)
            views.append(fork.read_only())
        return views

    yield after
    for fork in forks:
        fork.close()


async def test_same_calls_and_all_outputs_said_are_worth_one(states: Any) -> None:
    db, gold = await states([CANCEL], [CANCEL])
    result = evaluate(say("Cancelled, 53.43 goes back."), db=db, gold_db=gold, outputs=["53.43"], id="x")
    assert isinstance(result, EvaluateResult)
    assert result.score == 1.0
    assert {name: it.score for name, it in result.metrics.items()} == {"database": 1.0, "outputs": 1.0}


async def test_reason_names_the_values_that_differ(states: Any) -> None:
    db, gold = await states([], [CANCEL])
    result = evaluate(say("Done."), db=db, gold_db=gold, outputs=["53.43"])
    assert result.score == 0.0
    assert "orders #W1080318 status: expected 'cancelled', got 'pending'" in result.reason
    assert "never said: '53.43'" in result.reason
    assert result.metrics["database"].reason in result.reason
    assert result.metrics["outputs"].reason == "never said: '53.43'"


@pytest.mark.parametrize(
    ("outputs", "replies", "score"),
    [
        (["1093.34"], ["It is $1,093.34."], 1.0),
        (["10"], ["That costs $100."], 1.0),
        (["Blue"], ["the BLUE one"], 1.0),
        (["blue"], ["Red.", "Blue, then."], 1.0),
        (["a", "b"], ["a"], 0.0),
        (["a", "b"], ["b", "a"], 1.0),
        (["1,000"], ["1,000"], 0.0),  # commas are taken out of the reply only
        (["481.5"], ["$481.50"], 1.0),
        (["481.50"], ["$481.5"], 0.0),
        (["gold card"], ["go,ld, card"], 1.0),
        (["10"], [], 0.0),
    ],
)
async def test_outputs_are_found_anywhere(states: Any, outputs: Any, replies: Any, score: float) -> None:
    db, gold = await states([], [])
    assert evaluate(say(*replies), db=db, gold_db=gold, outputs=outputs).score == score


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "10"},
        {"role": "system", "content": "10"},
        {"role": "tool", "tool_call_id": "a", "content": "10"},
        {"role": "assistant", "content": "10", "tool_calls": [{"id": "a", "type": "function"}]},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
    ],
)
async def test_only_replies_that_reach_the_user_count(states: Any, message: dict[str, Any]) -> None:
    db, gold = await states([], [])
    assert evaluate([message], db=db, gold_db=gold, outputs=["10"]).score == 0.0


@pytest.mark.parametrize(
    ("stop_reason", "score"),
    [
        *((reason, 1.0) for reason in ("user_stop", "terminal_tool", "agent_done", None)),
        *((reason, 0.0) for reason in ("max_steps", "timeout", "budget", "agent_error")),
    ],
)
async def test_a_conversation_that_is_cut_off_has_no_worth(states: Any, stop_reason: Any, score: Any) -> None:
    db, gold = await states([CANCEL], [CANCEL])
    result = evaluate([], db=db, gold_db=gold, rollout=SimpleNamespace(stop_reason=stop_reason))
    assert result.score == score
    assert result.metrics["database"].score == 1.0
    if not score:
        assert result.reason == f"the conversation was cut off: {stop_reason}"


@pytest.mark.parametrize("seed", range(2))
async def test_verdict_on_random_pairs_is_that_of_their_hash(base: Any, seeded_data: Any, seed: int) -> None:
    """One sequence, and the same in another order, in part or with a call repeated."""
    rng = random.Random(seed)
    verdicts = []
    for _ in range(often(20, 8)):
        data, twisted = private(seeded_data), private(seeded_data)
        maker = CallMaker(rng, data)
        calls = []
        for _ in range(8):
            calls.append(maker.call())
            run(data, *calls[-1])
        other = _twisted(rng, calls)
        for call in other:
            run(twisted, *call)
        with base.fork() as first, base.fork() as second:
            for db, sequence in ((first, calls), (second, other)):
                for name, arguments in sequence:
                    await R.execute_tool(name, arguments, db=db)
            result = evaluate([], db=second.read_only(), gold_db=first.read_only())
        equal = state_hash(data) == state_hash(twisted)
        verdicts.append(equal)
        assert result.score == float(equal), (calls, other, result.reason)
    assert set(verdicts) == {True, False}


def _twisted(rng: random.Random, calls: list[Any]) -> list[Any]:
    dice = rng.randrange(4)
    if dice == 0:
        return rng.sample(calls, len(calls))
    if dice == 1:
        return [call for call in calls if rng.random() < 0.5]
    if dice == 2:
        return [*calls, rng.choice(calls)]
    return [(name, {**arguments, **_reversed_lists(arguments)}) for name, arguments in calls]


def _reversed_lists(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value[::-1] for name, value in arguments.items() if isinstance(value, list)}
