"""Code that blocks the event loop: it pays with its own time, is named, and its neighbours do not pay."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle

from reward_kit.agent import evaluate
from reward_kit.agent.base.deadline import Deadline, TimeLimit
from reward_kit.agent.reports.facts import tool_faults

ROWS = [
    {"id": f"row-{number}", "n_rollouts": 1, "metadata": {"number": number}, "actions": GOLD}
    for number in range(7)
]
PLAYERS = '''
import asyncio
import time


class Agent:
    """Books after half a second; that of the first row blocks everything before."""

    async def respond(self, rollout):
        for _ in range(5):
            await asyncio.sleep(0.1)
            if rollout.metadata["number"] == 0 and _ == 1:
                time.sleep(4)
        booked = await rollout.call_tool("create_booking", {"flight_id": 1, "passenger": "Alice"})
        await rollout.call_tool("pay_booking", {"booking_id": booked.partition(': "')[2].partition('"')[0]})
        return "Booked."


async def greets(rollout):
    return "Hello"


async def blocks(rollout):
    time.sleep(1.3)
    return "###STOP###"
'''


@pytest.mark.parametrize(
    "workers",
    [None, pytest.param(2, marks=pytest.mark.skipif(sys.platform == "win32", reason="no workers there"))],
)
def test_one_agent_that_blocks_costs_its_own_rollout(bundle: Bundle, workers: int | None) -> None:
    result = evaluate(
        bundle.dataset,
        agent=bundle.player("Agent"),
        user="none",
        timeout=3.0,
        workers=workers,
        retries=0,
    )
    found = {one.row_id: (one.reward, one.stop_reason) for one in result.outcomes}
    assert found.pop("row-0") == (0.0, "timeout")
    assert found == {f"row-{number}": (1.0, "agent_done") for number in range(1, 7)}
    ((line, first),) = tool_faults(result)
    assert first is not None
    assert first.row_id == "row-0"
    assert line.startswith("code with faults: the agent (1 call in 1 rollout), first took ")
    assert "past its limit" not in line
    assert "s and blocked the event loop, which all rollouts share, for " in line


def test_users_and_rewards_that_block_are_named(bundle: Bundle) -> None:
    reward = "async def evaluate(messages, **kwargs):\n    time.sleep(1.3)\n    return {'score': 1.0}\n"
    bundle.write("reward.py", f"import time\n{reward}")
    bundle.rows({"id": "row", "n_rollouts": 1})
    result = evaluate(bundle.dataset, agent=bundle.player("greets"), user=bundle.player("blocks"))
    assert [one.reward for one in result.outcomes] == [1.0]
    assert sorted(line.partition(" (1 call")[0] for line, _ in tool_faults(result)) == [
        "code with faults: the reward",
        "code with faults: the user",
    ]


def test_time_that_others_blocked_does_not_count_and_ones_own_does() -> None:
    async def blocks(seconds: float) -> tuple[bool, float]:
        limit = Deadline(0.5, asyncio.current_task())
        with TimeLimit(float("inf")):
            time.sleep(seconds)  # noqa: ASYNC251 - the mistake that is tested
        return limit.check(), limit.moved

    async def waits() -> tuple[bool, float]:
        limit = Deadline(0.5, asyncio.current_task())
        await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        return limit.check(), limit.moved

    async def main() -> Any:
        return await asyncio.gather(waits(), blocks(1.0))

    (is_over, moved), blocking = asyncio.run(main())
    assert blocking == (True, 0.0)
    assert not is_over
    assert moved >= 0.5


def test_a_limit_that_was_moved_far_for_code_of_nobody_says_so() -> None:
    async def blocks(limit: Deadline) -> None:
        while limit._ticker._blocker is None:  # the thread that watches is late on a slow machine
            time.sleep(0.01)  # noqa: ASYNC251 - the mistake that is tested

    async def main() -> Deadline:
        limit = Deadline(0.01, asyncio.current_task())
        await asyncio.gather(blocks(limit))
        await limit.passed
        return limit

    limit = asyncio.run(main())
    assert limit.is_moved_off
    why = limit.passed.result()
    assert why.startswith("not over after 0.01 s, for ")
    assert "s more of which other code blocked the event loop: Task-" in why
