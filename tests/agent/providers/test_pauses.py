"""How calls go on after a pause that the provider asked for: simulated to the end, in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from itertools import pairwise

import pytest
from virtual_provider import Provider, SlidingLimit, WindowLimit, now, played, refused, rollouts
from virtual_time import simulate

from reward_kit.agent.providers import Gate
from reward_kit.errors import ModelError


@pytest.mark.parametrize("say", [math.ceil, float], ids=["whole seconds", "exact"])
@pytest.mark.parametrize(("most", "seconds", "count"), [(1, 1.0, 3), (1, 1.0, 100), (30, 10.0, 20)])
def test_windows_shorter_than_the_answers_take_are_used_up_one_after_the_other(
    say: Callable[[float], float], most: int, seconds: float, count: int
) -> None:
    limit = WindowLimit(most, seconds)

    def verdict() -> ModelError | None:
        fault = limit()
        return None if fault is None else refused(retry_after=say(fault.retry_after or 0.0))

    provider = Provider(latency=3.0, verdict=verdict)
    calls = 300 // count
    taken = played(provider, count, calls)
    assert taken <= 1.2 * max(count * calls / most * seconds, calls * provider.latency)
    assert provider.refusals <= 0.25 * len(provider.accepted)


@pytest.mark.parametrize("latency", [0.05, 0.5, 3.0])
def test_a_window_begins_with_as_many_calls_as_were_let_through_in_the_one_before(latency: float) -> None:
    provider = Provider(latency=latency, verdict=WindowLimit(6, 10.0))
    played(provider, 50, 1)
    first, second = (sorted(at for at in provider.accepted if at // 10.0 == n) for n in (100, 101))
    assert len(first) == len(second) == 6
    assert all(0.0099 <= later - earlier <= 0.02 for earlier, later in pairwise(second))  # one by one


def test_one_that_names_too_short_a_time_is_asked_by_one_call_until_it_answers() -> None:
    limit = WindowLimit(10, 10.0)
    provider = Provider(
        latency=0.5, verdict=lambda: limit() and refused(retry_after=1.0), refusal_latency=0.1
    )
    taken = played(provider, 20, 5)
    assert taken <= 10.0 * 10 + 5.0
    assert provider.refusals <= 1.1 * len(provider.accepted)


def test_calls_that_are_still_being_answered_take_no_place_in_the_next_window() -> None:
    async def main() -> int:
        provider = Provider(latency=30.0, verdict=WindowLimit(4, 5.0))
        gate = Gate("stub", ceiling=100)
        running = asyncio.ensure_future(rollouts(provider, gate, 100, 1))
        await asyncio.sleep(10.0)
        running.cancel()
        return provider.under_way

    assert simulate(main()) == 8


@pytest.mark.parametrize("slots", [3, 20])
@pytest.mark.parametrize("latency", [0.05, 3.0])
def test_one_that_limits_the_calls_at_once_and_names_a_time_is_not_stormed(
    slots: int, latency: float
) -> None:
    provider = Provider(latency=latency, refusal_latency=0.05)
    provider.verdict = lambda: refused(retry_after=1.0) if provider.under_way > slots else None
    taken = played(provider, 60, 20)
    assert provider.refusals <= 0.12 * len(provider.accepted)
    assert taken <= 1.4 * 60 * 20 * latency / slots + 10.0


def test_a_sliding_limit_that_names_its_times_is_followed_closely() -> None:
    limit = SlidingLimit(10, 10.0)

    def verdict() -> ModelError | None:
        return limit() and refused(retry_after=limit.wait)

    provider = Provider(latency=3.0, verdict=verdict)
    assert played(provider, 20, 10) <= 1.25 * 200


class OneByOne:
    """A call each so many seconds; a refusal names whole seconds, as most servers do."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = -math.inf

    def __call__(self) -> ModelError | None:
        if now() < self._next:
            return refused(retry_after=float(math.ceil(self._next - now())))
        self._next = now() + self._seconds
        return None


@pytest.mark.parametrize("latency", [0.2, 0.5, 2.0])
@pytest.mark.parametrize("rate", [3, 10, 30])
def test_calls_that_are_taken_one_by_one_do_not_set_out_together_when_a_named_time_is_over(
    rate: int, latency: float
) -> None:
    """Each pause of a second that lets through one call is thirty times too long for 30 a second."""
    provider = Provider(latency=latency, verdict=OneByOne(1 / rate))
    assert played(provider, 50, 10) <= 3.5 * max(10 * latency, 500 / rate)
    assert provider.refusals <= 0.2 * len(provider.accepted)
