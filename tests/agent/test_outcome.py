"""What is remembered of a rollout: its log line, and the turn in which it succeeded."""

from __future__ import annotations

import json

import pytest

from reward_kit.agent.completion import Message, Usage
from reward_kit.agent.outcome import RolloutOutcome, total_usage, turn_of_success

OPENING: list[Message] = [{"role": "system", "content": "Policy"}, {"role": "user", "content": "Hello"}]


def conversation(*replies: str) -> list[Message]:
    """One tool call and one reply a turn."""
    messages = [*OPENING]
    for reply in replies:
        messages += [
            {"role": "assistant", "content": "1093.34, thought aloud", "tool_calls": [{"id": "c"}]},
            {"role": "tool", "tool_call_id": "c", "content": "1093.34"},
            {"role": "assistant", "content": reply},
            {"role": "user", "content": "I see."},
        ]
    return messages


@pytest.mark.parametrize(
    ("replies", "changed", "outputs", "turn"),
    [
        (["done"], [], [], 1),
        (["a", "b", "c"], [1, 2], [], 2),
        (["a", "It is $1,093.34", "c"], [], ["1093.34"], 2),
        (["a", "1093.34", "c"], [3], ["1093.34"], 3),
        (["first 12", "b", "then 13"], [1], ["12", "13"], 3),
        (["a", "b"], [2], ["never said"], 2),
    ],
)
def test_the_turn_of_success_is_the_last_that_mattered(
    replies: list[str], changed: list[int], outputs: list[str], turn: int
) -> None:
    assert turn_of_success(conversation(*replies), len(OPENING), changed, outputs) == turn


def outcome(reward: float | None, stop_reason: str = "user_stop", **more: object) -> RolloutOutcome:
    given: dict[str, object] = {
        "id": "i",
        "row_id": "r",
        "index": 0,
        "attempt": 0,
        "final": True,
        "seed": 1,
        "reward": reward,
        "stop_reason": stop_reason,
        "stop_detail": None,
        "error": None,
        "failure": None,
        "failure_detail": None,
        "steps": 1,
        "turns": 1,
        "turn_of_success": None,
        "started": 0.5,
        "seconds": 0.25,
        "model_seconds": 0.0,
        "file": "r/roll_i.json",
        "usage": {"agent": Usage(calls=1, cost=0.1), "user": Usage(calls=1, cost=0.2)},
        **more,
    }
    return RolloutOutcome(**given)  # type: ignore[arg-type]


def test_a_line_of_the_log_holds_all_of_it() -> None:
    raised: dict[str, object] = {"look": {"calls": 2, "first": "tools.py:3: KeyError: 'ü'"}}
    one = outcome(
        0.5, failure="wrong_tool", failure_detail="ä", tool_faults=raised, waited_seconds=0.5, timed_calls=3
    )
    assert RolloutOutcome.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_judged_or_not_and_why() -> None:
    assert (outcome(1.0).success, outcome(0.5).success, outcome(None).success) == (True, False, False)
    assert outcome(0.0).unjudged_reason is None
    assert outcome(None, "infrastructure_error").unjudged_reason == "infrastructure_error"
    assert outcome(None, "user_stop", error="reward.py:3: KeyError").unjudged_reason == "reward_error"
    assert outcome(None, "user_stop", error="reward.py:3: KeyError").trouble == "reward.py:3: KeyError"
    assert (outcome(1.0).trouble, outcome(0.0, stop_detail="left").trouble) == ("", "left")


def test_costs_add_up() -> None:
    one = outcome(1.0)
    assert one.cost == pytest.approx(0.3)
    assert total_usage(one.usage.values()) == Usage(calls=2, cost=one.cost)


def test_a_line_of_an_earlier_version_is_read_as_well() -> None:
    plain = outcome(0.5, failure="other").to_json()
    for name in ("failure_step", "user_faults", "tool_faults", "waited_seconds"):
        del plain[name]
    assert RolloutOutcome.from_json(plain) == outcome(0.5, failure="other")
    del plain["steps"]
    with pytest.raises(KeyError):
        RolloutOutcome.from_json(plain)
