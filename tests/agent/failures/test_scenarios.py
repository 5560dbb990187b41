"""Failed rollouts of the real orchestrator, one for each way to fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_agent import failure_of
from small_task import BOOKED, GOAL, ScriptedUser, airline, seeded, small_task

from reward_kit.agent.database import Database
from reward_kit.agent.failures import Failure

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
    """Books as scripted; ``pay`` says what it pays for: the booking it made, another, or none."""

    def __init__(self, *bookings: dict[str, Any], pay: str | None = "own", say: str = "Booked.") -> None:
        self.bookings, self.pay, self.say = bookings, pay, say

    async def respond(self, rollout: Any) -> str:
        made = [
            json.loads(await rollout.call_tool("create_booking", booking))["booking_id"]
            for booking in self.bookings
        ]
        if self.pay is not None:
            await rollout.call_tool("pay_booking", {"booking_id": made[0] if self.pay == "own" else self.pay})
        return self.say


async def fails(base: Database, folder: Path, agent: Any, **fields: Any) -> Failure | None:
    limits = {name: fields.pop(name) for name in ("max_steps", "timeout") if name in fields}
    user = fields.pop("user", None)
    task = small_task(folder, reward=whole, **{"actions": BOOKED, **fields})
    return await failure_of(task, base, agent=agent, user=user, **limits)


async def test_nothing_to_say_of_a_success(base: Database, tmp_path: Path) -> None:
    assert await fails(base, tmp_path, Books(BOOK[1])) is None


async def test_another_flight(base: Database, tmp_path: Path) -> None:
    failure = await fails(base, tmp_path, Books({"flight_id": 2, "passenger": "Alice"}))
    assert failure is not None
    assert (failure.kind, failure.step, failure.call) == ("wrong_arguments", 1, 0)
    assert failure.detail == "create_booking: flight_id: expected 1, got 2"
    assert [row["column"] for row in failure.rows] == ["flight_id"]


async def test_an_unpaid_booking(base: Database, tmp_path: Path) -> None:
    failure = await fails(base, tmp_path, Books(BOOK[1], pay=None))
    assert failure is not None
    assert (failure.kind, failure.call, failure.step) == ("partially_completed", None, 2)
    assert failure.expected is not None
    (row,) = failure.rows
    # the expected call names the booking that was really made, not the reference of the gold action
    assert failure.expected["arguments"] == {"booking_id": row["key"]["id"]}
    assert (row["column"], row["expected"], row["got"]) == ("status", "paid", "reserved")


class Asks:
    """Books the first flight that a search finds."""

    def __init__(self, **search: str) -> None:
        self.search = search

    async def respond(self, rollout: Any) -> str:
        (flight, *_) = json.loads(await rollout.call_tool("search_flights", self.search))
        await rollout.call_tool("create_booking", {"flight_id": flight["id"], "passenger": "Alice"})
        return "Booked."


async def test_what_was_found_by_a_wrong_question_is_a_wrong_argument(base: Database, tmp_path: Path) -> None:
    gold = [
        {"name": SEARCH[0], "arguments": SEARCH[1]},
        {
            "name": "create_booking",
            "arguments": {"flight_id": {"$result": [0, 0, "id"]}, "passenger": "Alice"},
        },
    ]
    assert await fails(base, tmp_path, Asks(origin="SFO", dest="JFK"), actions=gold) is None
    failure = await fails(base, tmp_path, Asks(origin="SFO", dest="LAX"), actions=gold)
    assert failure is not None
    assert failure.kind == "wrong_arguments"
    assert failure.detail == "create_booking: flight_id: expected 1, got 2"
    assert failure.expected == {"name": "create_booking", "arguments": {"flight_id": 1, "passenger": "Alice"}}


async def test_a_booking_that_does_not_exist_is_paid_for(base: Database, tmp_path: Path) -> None:
    failure = await fails(base, tmp_path, Books(BOOK[1], pay="0000"))
    assert failure is not None
    assert (failure.kind, failure.call) == ("wrong_arguments", 1)
    assert failure.made == {
        "name": "pay_booking",
        "arguments": {"booking_id": "0000"},
        "status": "refused",
        "answer": "Error: no such booking",
    }


async def test_the_same_booking_twice(base: Database, tmp_path: Path) -> None:
    failure = await fails(base, tmp_path, Books(BOOK[1], BOOK[1]))
    assert failure is not None
    assert (failure.kind, failure.call, failure.expected) == ("unintended_action", 1, None)
    assert failure.rows[0]["expected"] is None


async def test_a_handover_instead_of_work(base: Database, tmp_path: Path) -> None:
    task = small_task(tmp_path, reward=whole, actions=BOOKED)
    failure = await failure_of(task, base, [SEARCH, ("transfer", {})])
    assert failure is not None
    assert (failure.kind, failure.step, failure.call) == ("unintended_action", 2, 1)
    assert failure.expected is not None
    assert failure.expected["name"] == "create_booking"
    assert failure.made is not None
    assert failure.made["name"] == "transfer"


async def test_a_terminal_tool_with_bad_arguments_does_not_end_it(base: Database, tmp_path: Path) -> None:
    task = small_task(tmp_path, reward=whole, actions=BOOKED)
    failure = await failure_of(task, base, [("transfer", {"why": "?"}), SEARCH])
    assert failure is not None
    assert (failure.kind, failure.call) == ("partially_completed", None)


async def test_all_right_but_not_a_word_of_the_price(base: Database, tmp_path: Path) -> None:
    failure = await fails(base, tmp_path, Books(BOOK[1]), outputs=["1,093", "Booked"])
    assert failure is not None
    assert (failure.kind, failure.unsaid, failure.rows) == ("missing_output", ("1,093",), ())
    assert (failure.step, failure.turn) == (3, 1)


async def test_wrong_data_and_nothing_said_is_a_matter_of_the_data(base: Database, tmp_path: Path) -> None:
    failure = await fails(base, tmp_path, Books(BOOK[1], pay=None), outputs=["1093"])
    assert failure is not None
    assert (failure.kind, failure.unsaid) == ("partially_completed", ("1093",))


async def test_out_of_steps(base: Database, tmp_path: Path) -> None:
    failure = await fails(base, tmp_path, Books(BOOK[1]), max_steps=1)
    assert failure is not None
    assert (failure.kind, failure.step, failure.detail) == ("max_steps", 1, "its only step is used up")


class Raises:
    async def respond(self, rollout: Any) -> str:
        await rollout.call_tool(*BOOK)
        raise RuntimeError("out of luck")


async def test_an_agent_that_raises(base: Database, tmp_path: Path) -> None:
    failure = await fails(base, tmp_path, Raises())
    assert failure is not None
    assert failure.kind == "agent_error"
    assert "out of luck" in failure.detail
    assert failure.expected is not None
    assert failure.expected["name"] == "pay_booking"
    assert failure.rows


class Sleeps(Books):
    async def respond(self, rollout: Any) -> str:
        await super().respond(rollout)
        await asyncio.sleep(60)
        return ""


@pytest.mark.parametrize(("flight", "kind"), [(1, "other"), (2, "wrong_arguments")])
async def test_out_of_time(base: Database, tmp_path: Path, flight: int, kind: str) -> None:
    agent = Sleeps({"flight_id": flight, "passenger": "Alice"}, pay=None)
    failure = await fails(base, tmp_path, agent, timeout=0.3)
    assert failure is not None
    assert failure.kind == kind
    if kind == "other":
        assert failure.detail == "not over after 0.3 s"


class RaisingUser:
    async def respond(self, rollout: Any) -> str:
        raise RuntimeError("no line")


async def test_a_user_that_breaks_is_not_judged(base: Database, tmp_path: Path) -> None:
    failure = await fails(base, tmp_path, Books(BOOK[1]), user=RaisingUser(), outputs=["x"])
    assert failure is not None
    assert (failure.kind, failure.rows, failure.unsaid) == ("user_error", (), ())
    assert "no line" in failure.detail


async def test_a_user_that_misleads(base: Database, tmp_path: Path) -> None:
    failure = await fails(
        base, tmp_path, Books({"flight_id": 1, "passenger": "Bob"}),
        user=ScriptedUser(["It is bob@example.com, by the way"]),
        sim_user_prompt="You are Alice, alice@example.com.",
    )  # fmt: skip
    assert failure is not None
    assert failure.kind == "user_error"
    assert failure.detail.startswith("contradicts_instruction (turn 1): ")
    assert failure.made is not None
    assert failure.made["arguments"]["passenger"] == "Bob"


async def test_without_gold_actions_only_the_end_is_known(base: Database, tmp_path: Path) -> None:
    task = small_task(tmp_path, end_goal_sql=GOAL)
    failure = await failure_of(task, base, [SEARCH, "No."])
    assert failure is not None
    assert (failure.kind, failure.detail, failure.step) == (
        "other",
        "the row has no gold actions to compare with",
        2,
    )


async def test_gold_without_changes_and_work_all_the_same(base: Database, tmp_path: Path) -> None:
    failure = await fails(
        base, tmp_path, Books(BOOK[1]), actions=[{"name": SEARCH[0], "arguments": SEARCH[1]}]
    )
    assert failure is not None
    assert (failure.kind, failure.call) == ("unintended_action", 0)


async def test_the_call_of_a_tool_that_there_is_not(base: Database, tmp_path: Path) -> None:
    task = small_task(tmp_path, reward=whole, actions=BOOKED, registry=airline())
    failure = await failure_of(task, base, [("book_it", {}), ("create_booking", "{torn")])
    assert failure is not None
    assert (failure.kind, failure.call) == ("wrong_arguments", 1)
    assert "the arguments are no JSON object" in failure.detail
