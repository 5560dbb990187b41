"""Requests and tokens per minute: not exceeded, evenly spread; in virtual time."""

import asyncio
import random
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import often
from virtual_provider import Provider, now, rollouts
from virtual_time import simulate

from reward_kit.agent.base.types import Completion, Usage
from reward_kit.agent.models.calls import Call
from reward_kit.agent.models.limiter import Limiter
from reward_kit.agent.models.limits import TokenBucket


@pytest.mark.parametrize("rpm", [1, 10, 59, 3000])
def test_no_minute_has_more_requests_than_allowed_nor_are_they_in_a_heap(rpm: int) -> None:
    provider = Provider(latency=0.5)
    limiter = Limiter("stub", ceiling=500, rpm=rpm)
    calls = min(1500, rpm * 3)

    async def main() -> float:
        begin = now()
        assert not any(await rollouts(provider, limiter, min(calls, 300), -(-calls // 300)))
        return now() - begin

    seconds = simulate(main())
    made = len(provider.arrivals)
    assert provider.most_within(60.0) <= rpm
    assert provider.most_within(6.0) <= rpm / 10 + rpm / 60 + 2
    assert seconds <= made / rpm * 60 * 1.03 + 2


def test_a_look_at_a_full_minute_costs_no_more_than_at_an_empty_one() -> None:
    """A call looks several times before it is made."""
    looks = 0

    class Counted(float):
        def __add__(self, other: float) -> float:
            nonlocal looks
            looks += 1
            return Counted(float(self) + other)

        __radd__ = __add__

    bucket = TokenBucket(2_000)
    for number in range(2_000):
        now = number * 60.6 / 2_000
        assert bucket.delay(1.0, now) == 0.0
        bucket.take(1.0, now)
        bucket.settle(1.0, Counted(1.0), now)
    looks = 0
    for _ in range(100):
        assert bucket.delay(1.0, 60.5) > 0.0
    assert looks <= 100


@settings(max_examples=often(50))
@given(
    limit=st.integers(1, 50),
    calls=st.lists(st.tuples(st.floats(0, 20), st.integers(1, 30), st.integers(0, 30)), max_size=60),
)
def test_any_window_stays_within_the_limit(limit: int, calls: list[tuple[float, int, int]]) -> None:
    """Costs are settled at once, never above what was taken: then no window holds more than the limit."""
    bucket = TokenBucket(limit)
    clock = 0.0
    taken: list[tuple[float, int]] = []
    for gap, cost, saved in calls:
        clock += gap
        while (wait := bucket.delay(cost, clock)) > 0:
            clock += wait
        actual = max(0, cost - saved)
        bucket.take(cost, clock)
        bucket.settle(cost, actual, clock)
        taken.append((clock, actual))
    for begin, _ in taken:
        inside = [cost for time, cost in taken if begin <= time <= begin + 60.0]
        assert sum(inside) <= limit or len([cost for cost in inside if cost]) <= 1


@pytest.mark.parametrize("tpm", [5_000, 60_000])
@pytest.mark.parametrize("constant", [True, False])
def test_tokens_per_minute_are_not_exceeded_although_they_are_known_late(tpm: int, constant: bool) -> None:
    chance = random.Random(5)
    spent: list[tuple[float, float, int]] = []

    async def main() -> None:
        limiter = Limiter("stub", ceiling=50, tpm=tpm)

        async def rollout() -> None:
            for number in range(5):
                await limiter.attempt(call := Call(800 + 600 * number), partial(answered, call))

        async def answered(call: Call) -> Completion:
            begin = now()
            await asyncio.sleep(chance.uniform(0.5, 3.0))
            tokens = 300 if constant else call.size // 4
            spent.append((begin, now(), tokens + 40))
            return Completion({}, Usage(calls=1, input_tokens=tokens, output_tokens=40))

        await asyncio.gather(*(rollout() for _ in range(30)))

    simulate(main())
    for moment in (1, 0):  # counted when they were asked, and when they were answered
        for one in spent:
            begin = one[moment]
            assert sum(made[2] for made in spent if begin <= made[moment] < begin + 60.0) <= tpm
    total = sum(tokens for *_, tokens in spent)
    seconds = max(end for _, end, _ in spent) - 1000.0
    assert seconds <= max(60.0, total / tpm * 60.0 * 1.5)
    if tpm == 5_000:
        begins = sorted(begin for begin, *_ in spent)
        assert max(second - first for first, second in pairwise(begins)) < 20.0  # no burst each minute
