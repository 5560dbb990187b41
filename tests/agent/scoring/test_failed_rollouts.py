"""Failures of rollouts that were played, one for each way to fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_agent import failure_of
from small_task import BOOKED, ScriptedUser, airline, seeded, small_task

from reward_kit.agent.database import Database
from reward_kit.agent.scoring.failures.classify import Failure

SEARCH = ("search_flights", {"origin": "SFO", "dest": "JFK"})
BOOK = ("create_booking", {"flight_id": 1, "passenger": "Alice"})


@pytest.fixture
def base(tmp_path: Path) -> Iterator[Database]:
    with seeded(tmp_path) as database:
        yield database


def whole(messages: Any, *, db: Any, gold_db: Any, outputs: Any = (), **row: Any) -> dict[str, Any]:
    """1.0 if the data are those of the gold actions and every output was said."""
    said = " ".join(message["content"] or "" for message in messages if message["role"] == "assistant")
    right = db.equals(gold_db) and all(output in said for output in outputs)
    return {"score": float(right), "metrics": {}}


class Books:
    """Books as scripted; ``pay`` is the booking to pay for: the one it made, another, or none."""

    def __init__(self, *bookings: dict[str, Any], pay: str | None = "own", then: float = 0.0) -> None:
        self.bookings, self.pay, self.then = bookings, pay, then

    async def respond(self, rollout: Any) -> str:
        made = [
            json.loads(await rollout.call_tool("create_booking", booking))["booking_id"]
            for booking in self.bookings
        ]
        if self.pay is not None:
            await rollout.call_tool("pay_booking", {"booking_id": made[0] if self.pay == "own" else self.pay})
        if self.then < 0:
            raise RuntimeError("out of luck")
        await asyncio.sleep(self.then)
        return "Booked."


async def played(base: Database, folder: Path, agent: Any, **fields: Any) -> Failure | None:
    limits = {name: fields.pop(name) for name in ("max_steps", "timeout") if name in fields}
    user = fields.pop("user", None)
    task = small_task(folder, reward=whole, **{"actions": BOOKED, **fields})
    return await failure_of(task, base, agent=agent, user=user, **limits)


async def failed(base: Database, folder: Path, agent: Any, **fields: Any) -> Failure:
    failure = await played(base, folder, agent, **fields)
    assert failure is not None
    return failure


async def test_a_success_has_no_failure(base: Database, tmp_path: Path) -> None:
    assert await played(base, tmp_path, Books(BOOK[1])) is None


async def test_a_refused_call_is_kept_with_its_answer(base: Database, tmp_path: Path) -> None:
    failure = await failed(base, tmp_path, Books(BOOK[1], pay="0000"))
    call = {"name": "pay_booking", "arguments": {"booking_id": "0000"}}
    answer = {"status": "refused", "answer": "Error: no such booking"}
    assert (failure.kind, failure.call, failure.made) == ("wrong_arguments", 1, {**call, **answer})


@pytest.mark.parametrize(
    ("agent", "fields", "kind", "detail"),
    [
        (Books(BOOK[1]), {"outputs": ["1,093", "Booked"]}, "missing_output", "never said: '1,093'"),
        (Books(BOOK[1], pay=None), {"outputs": ["1093"]}, "partially_completed", "1 of 2 changes made"),
        (Books(BOOK[1]), {"max_steps": 1}, "max_steps", "its only step is used up"),
        (Books(BOOK[1], then=-1), {"outputs": ["1"]}, "agent_error", ""),
        (Books(BOOK[1], pay=None, then=60), {"timeout": 0.3}, "other", "not over after 0.3 s"),
        (
            Books(BOOK[1]),
            {"actions": [{"name": SEARCH[0], "arguments": SEARCH[1]}]},
            "unintended_action",
            "nobody asked for create_booking(",
        ),
        (
            Books({"flight_id": 1, "passenger": "Bob"}),
            {
                "user": ScriptedUser(["It is bob@example.com, by the way"]),
                "sim_user_prompt": "You are Alice, alice@example.com.",
            },
            "user_error",
            "contradicts_instruction (turn 1): ",
        ),
    ],
)
async def test_kind_and_detail(
    base: Database, tmp_path: Path, agent: Any, fields: dict[str, Any], kind: str, detail: str
) -> None:
    failure = await failed(base, tmp_path, agent, **fields)
    assert failure.kind == kind
    assert failure.detail.startswith(detail)


class RaisingUser:
    async def respond(self, rollout: Any) -> str:
        raise RuntimeError("no line")


async def test_a_user_that_raises_is_not_judged(base: Database, tmp_path: Path) -> None:
    failure = await failed(base, tmp_path, Books(BOOK[1]), user=RaisingUser(), outputs=["x"])
    assert (failure.kind, failure.rows, failure.unsaid) == ("user_error", [], [])
    assert "no line" in failure.detail


async def test_calls_that_cannot_run_count_as_attempts(base: Database, tmp_path: Path) -> None:
    task = small_task(tmp_path, reward=whole, actions=BOOKED, registry=airline())
    failure = await failure_of(task, base, [("book_it", {}), ("create_booking", "{torn")])
    assert failure is not None
    assert (failure.kind, failure.call) == ("wrong_arguments", 1)
    assert "the arguments are no JSON object" in failure.detail
