"""Calls that get no answer, or a server's error, now and then: simulated to the end, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from virtual_provider import Provider, now, refused, rollouts, unreachable
from virtual_time import simulate

from reward_kit.agent.providers import Gate
from reward_kit.agent.providers.misses import MEMORY, Misses
from reward_kit.errors import ModelError


def timed_out() -> ModelError:
    return ModelError("timed out", retryable=True, no_answer="time")


FAULTS: list[Callable[[], ModelError]] = [lambda: refused(503), lambda: refused(500), timed_out, unreachable]


def by_chance(provider: Provider, share: float, fault: Callable[[], ModelError]) -> None:
    chance = random.Random(7)
    provider.verdict = lambda: fault() if chance.random() < share else None


def played(provider: Provider, count: int, calls: int) -> tuple[float, int, list[str]]:
    """Seconds that so many rollouts take, how many could not be judged, and what was told meanwhile."""
    told: list[str] = []

    async def main() -> tuple[float, int]:
        begin = now()
        results = await rollouts(provider, Gate("stub", ceiling=count, tell=told.append), count, calls)
        return now() - begin, sum(result is not None for result in results)

    return (*simulate(main()), told)


@pytest.mark.parametrize("fault", FAULTS, ids=["503", "500", "time", "connection"])
@pytest.mark.parametrize("share", [0.02, 0.05, 0.1])
@pytest.mark.parametrize("latency", [0.2, 2.0])
def test_faults_by_chance_cost_their_retries_and_little_else(
    share: float, fault: Callable[[], ModelError], latency: float
) -> None:
    provider = Provider(latency=latency)
    by_chance(provider, share, fault)
    seconds, lost, told = played(provider, 100, 20)
    assert (lost <= 1, told) == (True, [])
    undisturbed = 20 * latency
    assert (
        seconds <= (1 + 80 * share) * undisturbed + 10.0
    )  # the worst of 100 rollouts waits some seconds for its retries


@pytest.mark.parametrize("fault", FAULTS[:3], ids=["503", "500", "time"])
def test_many_faults_by_chance_are_no_outage(fault: Callable[[], ModelError]) -> None:
    provider = Provider(latency=2.0)
    by_chance(provider, 0.25, fault)
    _, lost, told = played(provider, 100, 20)
    assert told == []
    assert lost <= 20  # four attempts in a row: 0.4 % of the calls


@pytest.mark.parametrize("retry_after", [None, 1.0])
def test_an_overloaded_server_is_asked_less(retry_after: float | None) -> None:
    provider = Provider(latency=0.2)
    provider.verdict = lambda: refused(503, retry_after) if provider.under_way > 10 else None
    seconds, lost, _ = played(provider, 100, 20)
    assert lost == 0
    assert provider.refusals <= 0.05 * len(provider.accepted)
    assert seconds <= 1.3 * 2000 * 0.2 / 10


def test_an_outage_is_noticed_after_many_faults_by_chance() -> None:
    chance = random.Random(5)

    def verdict() -> ModelError | None:
        if 30.0 < now() - begun[0] < 90.0:
            return refused(500)
        return refused(500) if chance.random() < 0.2 else None

    provider = Provider(latency=0.5, verdict=verdict)
    told: list[str] = []
    begun: list[float] = []

    async def main() -> list[object]:
        begun.append(now())
        gate = Gate("stub", ceiling=20, tell=told.append)
        return await rollouts(provider, gate, 20, 200)

    lost = sum(result is not None for result in simulate(main()))
    assert all("does not answer" in text for text in told[:-1])
    assert 1 <= len(told[:-1]) <= 2  # once a minute
    assert "answers again" in told[-1]
    outage = [time for time in provider.arrivals if begun[0] + 31.0 < time < begun[0] + 90.0]
    assert len(outage) <= 30  # a try now and then
    assert lost <= 12  # 0.16 % of 4 000 calls are lost by chance


def test_attempts_under_way_may_yet_be_answered() -> None:
    misses = Misses()
    for number in range(10 * MEMORY):
        misses.missed() if number % 5 == 0 else misses.answered()
    while not misses.too_many(0):
        misses.missed()
    assert 6 <= misses.in_a_row <= 10
    assert not misses.too_many(80)


def test_where_hardly_any_fails_the_second_fault_in_a_row_is_heeded_and_the_third_may_be_an_outage() -> None:
    misses = Misses()
    seen = []
    for _ in range(3):
        misses.missed()
        seen.append((misses.few(0), misses.too_many(0)))
    assert seen == [(True, False), (False, False), (False, True)]


def test_few_faults_are_few_again_when_they_have_become_fewer() -> None:
    misses = Misses()
    for number in range(10 * MEMORY):
        misses.missed() if number % 5 == 0 else misses.answered()
    misses.missed()
    assert not misses.few(100)
    for _ in range(MEMORY):
        misses.answered()
    misses.missed()
    assert misses.few(100)
