"""What is said of failed retail rollouts: class, first wrong step, expected beside made, rows that differ."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_agent import failure_of

from reward_kit.agent.bundles.bundle import Task, TaskBundle
from reward_kit.agent.scoring.failures.classify import Failure
from tau_retail_task.tools import R

ADDRESS = "modify_pending_order_address"
ITEMS = "modify_pending_order_items"


@pytest.fixture(scope="module")
def tasks() -> Iterator[list[Task]]:
    with TaskBundle.load(str(Path(__file__).parents[2] / "tau_retail_task" / "task.jsonl")) as bundle:
        yield list(bundle.tasks)


def gold(task: Task, **changed: Any) -> list[Any]:
    """The gold calls, the given arguments changed in each call that has them."""
    return [
        (action.name, {**action.arguments, **{k: v for k, v in changed.items() if k in action.arguments}})
        for action in task.row.actions or ()
    ]


async def failed(task: Task, base: Any, made: list[Any], **limits: Any) -> Failure:
    """The failure of a rollout that makes these calls."""
    failure = await failure_of(task, base, made, **limits)
    assert failure is not None
    return failure


def writes(task: Task) -> list[Any]:
    return [call for call in gold(task) if not call[0].startswith(("get_", "find_", "list_", "calculate"))]


async def test_a_wrong_item(tasks: list[Task], base: Any) -> None:
    made = gold(tasks[1], new_item_ids=["4953074738"])
    failure = await failed(tasks[1], base, made)
    assert failure.kind == "wrong_arguments"
    assert (failure.step, failure.turn, failure.call) == (5, 1, 4)
    assert failure.arguments == [
        {"argument": "new_item_ids", "expected": ["7747408585"], "got": ["4953074738"]}
    ]
    assert (failure.expected or {})["name"] == "exchange_delivered_order_items"
    assert (failure.made or {})["arguments"]["new_item_ids"] == ["4953074738"]
    assert any("7747408585" in str(row["expected"]) for row in failure.rows)


async def test_items_before_the_address_block_the_address(tasks: list[Task], base: Any) -> None:
    address, items = writes(tasks[71])
    failure = await failed(tasks[71], base, [items, address])
    assert failure.kind == "partially_completed"
    assert f"{ITEMS} came before {ADDRESS}" in failure.detail
    assert "non-pending order cannot be modified" in failure.detail
    assert failure.call == 0
    assert (failure.expected or {})["name"] == ADDRESS


async def test_columns_that_the_reward_ignores_are_no_difference(tasks: list[Task], base: Any) -> None:
    """Replacing an address by itself changes a column that the reward does not compare."""
    task = tasks[46]
    user_id = task.row.metadata["user_id"]
    with base.fork() as fork:
        address = json.loads(await R.execute_tool("get_user_details", {"user_id": user_id}, db=fork))[
            "address"
        ]
        same = ("modify_user_address", {"user_id": user_id, **address})
        await R.execute_tool(*same, db=fork)
        assert len(fork.changes()) == 1
    failure = await failed(task, base, [same, *writes(task)])
    assert (failure.kind, failure.rows) == ("missing_output", [])
