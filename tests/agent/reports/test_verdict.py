"""The two lines of a verdict, by what is known of a failure."""

from __future__ import annotations

from typing import Any

import pytest

from reward_kit.agent.reports.pages.rollout_page import verdict_on
from reward_kit.agent.rollout.trace import Trace

BOOK = {"name": "book", "arguments": {"seat": 1, "note": "x"}}
OTHER = {"name": "book", "arguments": {"seat": 2, "note": "y"}, "status": "ok"}
SEAT = [{"argument": "seat", "expected": 1, "got": 2}]
NOTE = [{"argument": "note", "expected": "x", "got": "y"}]


@pytest.mark.parametrize(
    ("failure", "wanted", "happened"),
    [
        ({"kind": "partially_completed", "expected": BOOK}, 'book(seat=1, note="x")', "it was never called"),
        (
            {"kind": "wrong_arguments", "expected": BOOK, "made": OTHER, "arguments": [*SEAT, *NOTE]},
            'book(seat=1, note="x")',
            'book(seat=2, note="y")',
        ),
        (
            {
                "kind": "wrong_arguments",
                "expected": BOOK,
                "made": OTHER,
                "arguments": [*SEAT, *NOTE],
                "not_compared": ["log", "tickets.note"],
            },
            "book(…, seat=1)",
            "book(…, seat=2)",
        ),
        (
            {
                "kind": "partially_completed",
                "expected": BOOK,
                "made": {**BOOK, "status": "refused", "answer": "Error: full"},
            },
            'book(seat=1, note="x")',
            'book(seat=1, note="x"): refused, Error: full',
        ),
        ({"kind": "unintended_action", "made": OTHER}, "no such call", 'book(seat=2, note="y")'),
        (
            {"kind": "unintended_action", "made": {**OTHER, "arguments": "{"}},
            "no such call",
            "book({)",
        ),
        ({"kind": "missing_output", "unsaid": ["12.5"]}, 'the agent says "12.5"', "it was never said"),
        ({"kind": "max_steps", "detail": "30 steps", "expected": BOOK}, 'book(seat=1, note="x")', "30 steps"),
        ({"kind": "agent_error", "detail": "it raised"}, "", "it raised"),
        ({"kind": "other", "detail": "nothing is known"}, "", "the reward says so"),
    ],
)
def test_both_lines(failure: dict[str, Any], wanted: str, happened: str) -> None:
    result = {"score": 0.0, "reason": "the reward says so"}
    record = Trace(id="x", row_id="a", messages=[], reward=0.0, result=result, failure=failure)
    assert verdict_on(record, [])[:2] == (wanted, happened)


def test_a_rollout_without_a_reward_says_why() -> None:
    record = Trace(id="x", row_id="a", messages=[], stop_reason="timeout", stop_detail="after 9 s")
    assert verdict_on(record, [])[:2] == ("", "after 9 s")
    record.error = "the reward raised"
    assert verdict_on(record, []).happened == "the reward raised"
