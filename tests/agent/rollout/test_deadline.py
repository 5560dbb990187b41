"""A rollout's time stands still while it waits for what is not its doing."""

import asyncio

from virtual_provider import now
from virtual_time import simulate

from reward_kit.agent.base.deadline import Deadline


def test_waits_are_added_and_those_at_the_same_time_count_once() -> None:
    async def wait(deadline: Deadline, begin: float, seconds: float) -> None:
        await asyncio.sleep(begin)
        with deadline.paused():
            await asyncio.sleep(seconds)

    async def main() -> float:
        begin = now()
        deadline = Deadline(5.0)
        waits = asyncio.gather(*(wait(deadline, *times) for times in ((1.0, 10.0), (2.0, 4.0), (12.0, 3.0))))
        await deadline.passed
        await waits
        return now() - begin

    assert simulate(main()) == 18.0
