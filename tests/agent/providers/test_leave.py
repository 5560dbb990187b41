"""Requests and tokens per minute that several processes keep together; in virtual time."""

from __future__ import annotations

import asyncio
import json
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from itertools import pairwise
from typing import Any

import pytest
import virtual_provider
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_provider import now, refused, unreachable
from virtual_time import simulate

from reward_kit.agent.completion import Completion, Usage
from reward_kit.agent.model_clients.attempts import answered
from reward_kit.agent.providers import Gate, Gates
from reward_kit.agent.providers.leave import Asker, Leave, LimitsForAll
from reward_kit.errors import ModelError

SLOW = 0.05
"""Seconds that a line takes from one process to the other."""


class Provider:
    """Remembers when requests came, and what their answers used; ``verdict`` is asked for faults.

    A call uses so many ``tokens``; without, a quarter of its size, as is guessed.
    """

    def __init__(
        self,
        tokens: int | None = None,
        latency: float = 0.5,
        verdict: Callable[[], ModelError | None] | None = None,
    ) -> None:
        self.tokens = tokens
        self.latency = latency
        self.verdict = verdict or (lambda: None)
        self.arrivals: list[tuple[float, str]] = []
        self.used: list[tuple[float, int]] = []

    async def attempt(self, who: str, size: int) -> Completion | ModelError:
        began = now()
        self.arrivals.append((began, who))
        fault = self.verdict()
        if fault is not None:
            return fault
        tokens = self.tokens or size // 4
        self.used.append((began, tokens))
        await asyncio.sleep(self.latency)
        return Completion({}, Usage(calls=1, input_tokens=tokens))

    def most_requests(self, seconds: float = 60.0) -> int:
        return most([(time, 1) for time, _ in self.arrivals], seconds)

    def most_tokens(self, seconds: float = 60.0) -> int:
        return most(self.used, seconds)


def most(amounts: list[tuple[float, int]], seconds: float) -> int:
    """The largest sum in any so many seconds."""
    begins = [time for time, _ in amounts]
    return max(
        (sum(amount for time, amount in amounts if begin <= time < begin + seconds) for begin in begins),
        default=0,
    )


class Process:
    """A process with a gate of its own that shares limits with others; lines are JSON, and take time."""

    def __init__(self, name: str, provider: Provider, limits: LimitsForAll, **options: Any) -> None:
        self.name = name
        self.provider = provider
        self.dead = False
        self.asker = Asker(limits, self.later(lambda line: self.leave.heard(line)))
        self.leave = Leave(self.later(self.asker.heard))
        self.gates = Gates(**{"ceiling": 20, **options})
        self.gate = self.gates.of("stub", None)
        self.gates.ask(self.leave)
        self.playing: list[asyncio.Task[Any]] = []

    def later(self, hear: Callable[[Mapping[str, Any]], None]) -> Callable[[Mapping[str, Any]], None]:
        under_way: deque[str] = deque()  # timers of the same moment may go off in any order

        def arrive() -> None:
            line = under_way.popleft()
            if not self.dead:
                hear(json.loads(line))

        def tell(line: Mapping[str, Any]) -> None:
            under_way.append(json.dumps(line))
            asyncio.get_running_loop().call_later(SLOW, arrive)

        return tell

    async def ask(self, size: int = 400, retries: int = 3) -> Completion:
        return await answered(
            lambda: self.provider.attempt(self.name, size),
            retries=retries,
            backoff=1.0,
            gate=self.gate,
            size=size if self.gate.wants_size else 0,
        )

    def play(self, calls: int, size: int = 400) -> asyncio.Task[None]:
        """One rollout."""

        async def rollout() -> None:
            for _ in range(calls):
                await self.ask(size)

        self.playing.append(asyncio.ensure_future(rollout()))
        return self.playing[-1]

    async def die(self) -> None:
        self.dead = True
        for task in self.playing:
            task.cancel()
        await asyncio.gather(*self.playing, return_exceptions=True)
        self.asker.gone()


def processes(number: int, provider: Provider, **options: Any) -> list[Process]:
    limits = LimitsForAll(options.get("rpm"), options.get("tpm"))
    return [Process(f"{place}", provider, limits, **options) for place in range(number)]


def took(main: Callable[[], Awaitable[None]]) -> float:
    """Seconds of virtual time."""
    faults: list[dict[str, Any]] = []

    async def timed() -> float:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
        begin = now()
        await main()
        return now() - begin

    seconds = simulate(timed())
    assert faults == []
    return seconds


@pytest.mark.parametrize("rpm", [1, 2, 7, 60, 600])
def test_no_minute_has_more_requests_than_allowed_however_many_processes_ask(rpm: int) -> None:
    provider = Provider()
    calls = min(5, rpm)

    async def main() -> None:
        await asyncio.gather(*(one.play(calls) for one in processes(8, provider, rpm=rpm) for _ in range(3)))

    seconds = took(main)
    assert len(provider.arrivals) == 24 * calls
    assert provider.most_requests() <= rpm
    assert seconds <= len(provider.arrivals) / rpm * 60 * 1.03 + 10


def test_calls_that_take_more_than_a_processs_part_stay_within_the_limit() -> None:
    provider = Provider(tokens=6_000, latency=4.0)

    async def main() -> None:
        await asyncio.gather(*(one.play(4) for one in processes(8, provider, tpm=30_000)))

    seconds = took(main)
    assert provider.most_tokens() <= 30_000
    assert seconds <= 32 / 5 * 60 * 1.1 + 60


def test_a_call_above_the_limit_goes_alone_among_all_processes() -> None:
    provider = Provider(tokens=500)

    async def main() -> None:
        await asyncio.gather(*(one.play(2) for one in processes(3, provider, tpm=100)))

    took(main)
    assert provider.most_tokens() == 500


def test_who_has_nothing_to_do_leaves_its_part_to_the_others() -> None:
    provider = Provider()

    async def main() -> None:
        first, *others = processes(4, provider, rpm=60)
        await asyncio.gather(*(one.play(1) for one in others))
        await asyncio.gather(*(first.play(20) for _ in range(10)))

    assert took(main) <= 203 * 1.03 + 10


def test_processes_take_turns() -> None:
    provider = Provider(latency=0.1)

    async def main() -> None:
        first, second = processes(2, provider, rpm=60)
        many = [first.play(1) for _ in range(20)]
        await asyncio.sleep(2.0)
        await second.play(3)
        assert sum(task.done() for task in many) < 10
        await asyncio.gather(*many)

    took(main)


def test_a_request_counts_from_the_moment_at_which_its_process_sends_it() -> None:
    """Its process may be busy for long when leave comes."""
    limits = LimitsForAll(1, None)
    given: list[tuple[str, float]] = []

    async def main() -> None:
        first = Asker(limits, lambda line: given.append(("first", now())))
        second = Asker(limits, lambda line: given.append(("second", now())))
        for asker in (first, second):
            asker.heard({"ask": 1, "gate": "stub", "size": 0})
        await asyncio.sleep(100.0)
        assert [name for name, _ in given] == ["first"]
        first.heard({"went": 1})
        await asyncio.sleep(61.0)

    simulate(main())
    assert [name for name, _ in given] == ["first", "second"]
    assert given[1][1] - given[0][1] >= 160.0


def test_a_process_that_dies_frees_what_it_asked_for_and_has_used_what_it_got() -> None:
    provider = Provider(latency=30.0)

    async def main() -> None:
        first, second = processes(2, provider, rpm=2)
        for _ in range(5):
            first.play(1)
        await asyncio.sleep(40.0)  # one has gone, one is under way, one waits
        assert len(provider.arrivals) == 2
        await first.die()
        await second.play(2)

    assert took(main) <= 40.0 + 61.0 + 30.0 + 61.0 + 1.0
    assert provider.most_requests() <= 2
    assert [who for _, who in provider.arrivals] == ["0", "0", "1", "1"]


def test_a_process_that_dies_with_calls_under_way_hinders_nobody() -> None:
    provider = Provider(tokens=90, latency=1e6)

    async def main() -> None:
        first, second = processes(2, provider, tpm=100)
        first.play(1)
        waiting = first.play(1, size=800)
        await asyncio.sleep(5.0)
        provider.latency = 1.0
        others = second.play(1)
        await asyncio.sleep(5.0)
        assert not waiting.done()
        await first.die()
        await others

    assert took(main) <= 75.0


def test_calls_that_are_cancelled_give_their_leave_back() -> None:
    provider = Provider()

    async def main() -> None:
        first, second = processes(2, provider, rpm=1)
        await first.play(1)
        for moment in (0.0, 0.5, 1.5, 2.5, 10.0):
            waiting = [one.play(1) for one in (first, first, second)]
            await asyncio.sleep(moment * SLOW)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
            assert first.gate.waiting <= 2
        await second.play(1)
        assert first.gate.in_flight == second.gate.in_flight == 0

    assert took(main) <= 65.0


def test_a_call_that_is_cancelled_holds_up_nobody_behind_it() -> None:
    provider = Provider(latency=1.0)

    async def main() -> None:
        first, second = processes(2, provider, tpm=100)
        await first.play(1, size=80)
        long = first.play(1, size=400)
        await asyncio.sleep(1.0)
        short = second.play(1, size=80)
        await asyncio.sleep(15.0)
        assert not short.done()
        long.cancel()
        await short

    assert took(main) <= 30.0


def test_leave_that_comes_after_its_call_was_cancelled_is_not_lost() -> None:
    provider = Provider()

    async def main() -> None:
        first, second = processes(2, provider, rpm=1)
        cancelled = first.play(1)
        await asyncio.sleep(SLOW * 1.5)  # leave is on its way
        cancelled.cancel()
        await second.play(1)

    assert took(main) < 10.0
    assert [who for _, who in provider.arrivals] == ["1"]


def test_a_gate_that_the_provider_has_closed_keeps_no_leave_from_others() -> None:
    provider = Provider()

    async def main() -> None:
        first, second = processes(2, provider, rpm=1)
        await second.play(1)
        waiting = first.play(1)
        await asyncio.sleep(30.0)
        first.gate.heed({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "60s"})
        await second.play(1)
        assert not waiting.done()
        await waiting

    assert took(main) <= 130.0
    assert [who for _, who in provider.arrivals] == ["1", "1", "0"]


def test_a_longer_call_that_comes_back_and_goes_first_is_not_stuck() -> None:
    """The call that was next has asked, and holds what the one that goes before it needs."""
    faults = iter([unreachable()])
    provider = Provider(tokens=90, verdict=lambda: next(faults, None))

    async def main() -> None:
        (one,) = processes(1, provider, tpm=100, ceiling=5)
        await asyncio.gather(one.play(1, size=300), one.play(1, size=200), one.play(1, size=100))

    took(main)
    assert len(provider.used) == 3
    assert provider.most_tokens() <= 100


def test_what_waits_for_leave_takes_nothing_of_its_rollouts_time() -> None:
    from reward_kit.agent.deadline import Deadline

    provider = Provider(latency=1.0)

    async def main() -> None:
        first, second = processes(2, provider, rpm=1)
        await first.play(1)
        deadline = Deadline(10.0)
        with deadline.applied():
            call = second.play(1)
        await call
        assert now() > 1060.0
        assert not deadline.passed.done()
        deadline.close()

    took(main)


def test_what_waits_for_leave_is_told_with_the_answer() -> None:
    provider = Provider(latency=1.0)

    async def main() -> None:
        first, second = processes(2, provider, rpm=1)
        await first.play(1)
        given = await second.ask()
        assert given.seconds == pytest.approx(1.0)
        assert given.waited == pytest.approx(provider.arrivals[1][0] - provider.arrivals[0][0] - 1.0)

    took(main)


def test_tries_while_a_provider_is_down_are_requests_too() -> None:
    provider = Provider(verdict=lambda: unreachable() if now() < 1300.0 else None)

    async def main() -> None:
        await asyncio.gather(*(one.play(2) for one in processes(3, provider, rpm=2)))

    took(main)
    assert provider.most_requests() <= 2


def test_a_gate_that_is_found_later_asks_too() -> None:
    provider = Provider()

    async def main() -> None:
        both = processes(2, provider, rpm=1)
        for one in both:
            one.gate = one.gates.of("elsewhere", "http://10.0.0.7/v1")
        await asyncio.gather(*(one.play(1) for one in both))

    assert took(main) > 60.0


def test_a_request_counts_to_its_end_before_anything_has_been_answered() -> None:
    """What is loaded for the first request takes seconds, in which other processes send theirs."""
    provider = Provider(latency=10.0)

    async def main() -> None:
        await asyncio.gather(*(one.play(2) for one in processes(2, provider, rpm=2)))

    took(main)
    first, _, third, _ = (time for time, _ in provider.arrivals)
    assert third >= first + provider.latency + 60.0


def test_without_limits_nobody_is_asked() -> None:
    async def main() -> None:
        (one,) = processes(1, Provider())
        one.leave.tell = pytest.fail  # type: ignore[assignment]
        await one.play(3)

    took(main)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), rpm=st.integers(2, 40), tpm=st.integers(200, 4_000))
def test_whatever_happens_the_limits_hold_and_everybody_is_served(seed: int, rpm: int, tpm: int) -> None:
    chance = random.Random(seed)
    provider = Provider(latency=2.0)
    provider.verdict = lambda: refused(chance.choice([429, 500])) if chance.random() < 0.1 else None

    async def main() -> None:
        everybody = processes(4, provider, rpm=rpm, tpm=tpm, patience=1e6)
        doomed, *lasting = everybody
        for one in everybody:
            for _ in range(4):
                one.play(2, size=chance.choice([100, 400]))
        await asyncio.sleep(chance.uniform(0.0, 60.0))
        await doomed.die()
        for one in lasting:
            one.playing.pop().cancel()
        results = await asyncio.gather(
            *(task for one in lasting for task in one.playing), return_exceptions=True
        )
        assert all(result is None or isinstance(result, ModelError) for result in results)
        for one in lasting:
            assert (one.gate.in_flight, one.gate.waiting) == (0, 0)

    took(main)
    assert provider.most_requests() <= rpm
    assert provider.most_tokens() <= tpm


class TestNotices:
    """What is told of an outage that several processes meet."""

    def told(
        self, outages: list[tuple[float, float]], processes: int, **options: Any
    ) -> list[tuple[float, str]]:
        """What is told, and when, of outages between these seconds after the start."""
        lines: list[tuple[float, str]] = []

        async def main() -> None:
            begun = now()
            provider = Provider(
                latency=0.2,
                verdict=lambda: (
                    unreachable() if any(begin <= now() - begun < end for begin, end in outages) else None
                ),
            )
            limits = LimitsForAll(options.get("rpm"), None)
            made = [Process(str(number), provider, limits, **options) for number in range(processes)]
            for process in made:
                process.gates.tell = lambda text: lines.append((now() - begun, text))
            last = max(end for _, end in outages) + 70.0
            while now() - begun < last:
                await asyncio.gather(*(process.ask() for process in made for _ in range(3)))
                await asyncio.sleep(1.0)

        simulate(main())
        return lines

    @pytest.mark.parametrize("processes", [1, 4])
    @pytest.mark.parametrize("options", [{}, {"rpm": 600}])
    def test_an_outage_is_told_when_it_begins_once_a_minute_and_when_it_ends(
        self, processes: int, options: dict[str, Any]
    ) -> None:
        lines = self.told([(10.0, 400.0)], processes, **options)
        assert "does not answer since" in lines[0][1]
        assert lines[0][0] < 20.0
        assert "answers again after" in lines[-1][1]
        assert len([text for _, text in lines if "answers again" in text]) == 1
        assert 5 <= len(lines) <= 9
        assert all(second[0] - first[0] >= 59.0 for first, second in pairwise(lines[:-1]))

    @pytest.mark.parametrize("processes", [1, 4])
    def test_each_outage_is_told(self, processes: int) -> None:
        lines = self.told([(10.0, 15.0), (30.0, 35.0)], processes)
        assert ["does not answer" in text for _, text in lines] == [True, False] * 2


def test_a_provider_that_fails_in_another_way_is_told_of_at_once() -> None:
    told: list[str] = []

    async def main() -> None:
        gate = Gate("stub", ceiling=4, tell=told.append)
        faults = [unreachable()] * 5 + [refused(502)] * 4 + [unreachable()]
        provider = virtual_provider.Provider(verdict=lambda: faults.pop(0) if faults else None)
        await provider.ask(gate, retries=20)

    simulate(main())
    assert ["502" in line for line in told] == [False, True, False]
    assert "answers again" in told[-1]
