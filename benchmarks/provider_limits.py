"""The fit of calls to the limits of a provider that only refuses: time against the shortest possible time.

    python benchmarks/provider_limits.py [--rollouts 100] [--calls 30] [--latency 0.2] [--plays 5]

Providers with several kinds of limits are simulated in virtual time: each rollout makes its calls one after
the other through the limiter that evaluations use. The script prints the median time of several plays, as a
multiple of the shortest time that the limit permits, and the share of refused calls, each beside the figure
of the former limiter at commit 1aab554 (100 rollouts of 30 calls, 5 plays). Nothing waits, so the numbers do
not depend on the machine.
"""

from __future__ import annotations

import itertools
import math
import random
import statistics
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import click

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "agent"))

from virtual_provider import BucketLimit, Provider, WindowLimit, now, refused, rollouts, without_limiter
from virtual_time import simulate

from reward_kit.agent.models.limiter import Limiter
from reward_kit.errors import ModelError

FORMER = {
    "1 at once": (1.0, 0.01),
    "3 at once": (1.0, 0.008),
    "17 at once": (1.03, 0.009),
    "60 at once": (1.32, 0.003),
    "1 a second, burst 1": (1.21, 0.098),
    "1 a second, burst 1, says when": (1.21, 0.096),
    "20 a second, burst 1": (1.34, 0.024),
    "20 a second, burst 1, says when": (1.34, 0.008),
    "50 a second, burst 10": (1.12, 0.02),
    "50 a second, burst 10, says when": (1.11, 0.019),
    "200 a second, burst 1": (1.71, 0.03),
    "200 a second, burst 1, says when": (1.53, 0.006),
    "200 a second, burst 20": (1.41, 0.014),
    "200 a second, burst 20, says when": (1.64, 0.01),
    "10 in each 1 s": (1.02, 0.028),
    "10 in each 1 s, says when": (1.0, 0.022),
    "100 in each 1 s": (1.34, 0.022),
    "100 in each 1 s, says when": (1.21, 0.021),
    "200 in each 5 s": (1.04, 0.042),
    "200 in each 5 s, says when": (0.97, 0.032),
    "10 in any 1 s": (1.01, 0.009),
    "2% by chance": (1.84, 0.021),
    "5% by chance": (1.71, 0.051),
    "10% by chance": (1.74, 0.115),
    "20% by chance": (1.28, 0.249),
    "30% by chance": (1.58, 0.424),
    "40% by chance": (1.47, 0.667),
    "each third": (1.13, 0.5),
}
"""Time as a multiple of the least possible, and refused calls for each answered one, at commit 1aab554."""

Verdict = Callable[[], ModelError | None]
Named = Callable[[float], float]
"""The seconds that a refusal names, from those until the next call would be answered."""
NAMED: dict[str, Named | None] = {"": None, ", says when": float, ", whole seconds": math.ceil}


class Scenario(NamedTuple):
    """``least``: the least time for rollouts, calls of each and seconds of an answer; None: that without a
    limiter."""

    name: str
    limit: Callable[[Provider, random.Random], Verdict]
    least: Callable[[int, int, float], float] | None
    rollouts: int | None = None


class SlidingLimit:
    """At most ``most`` requests within any ``seconds``; a refusal names no time."""

    def __init__(self, most: int, seconds: float) -> None:
        self._accepted: deque[float] = deque([-math.inf] * most, maxlen=most)
        self._seconds = seconds

    def __call__(self) -> ModelError | None:
        if self._accepted[0] > now() - self._seconds:
            return refused()
        self._accepted.append(now())
        return None


def played(provider: Provider, count: int, calls: int, *, limited: bool = True) -> float:
    """Seconds that ``count`` rollouts take, none of which fails; ``limited``: through the limiter."""

    async def main() -> float:
        begin = now()
        if limited:
            results = await rollouts(provider, Limiter("stub", ceiling=count), count, calls)
            assert results == [None] * count
        else:
            await without_limiter(provider, count, calls)
        return now() - begin

    return simulate(main())


def scenarios() -> Iterator[Scenario]:
    """The scenarios, in the order of the table."""
    for slots in (1, 3, 17, 60):
        yield Scenario(
            f"{slots} at once",
            lambda provider, _, slots=slots: lambda: refused() if provider.under_way > slots else None,
            lambda count, calls, latency, slots=slots: max(calls, count * calls / slots) * latency,
        )
    for rate, burst in ((1, 1), (20, 1), (50, 10), (60, 10), (200, 1), (200, 20)):
        for words, named in NAMED.items():
            yield Scenario(
                f"{rate} a second, burst {burst}{words}",
                lambda *_, rate=rate, burst=burst, named=named: BucketLimit(rate, burst, named),
                lambda count, calls, latency, rate=rate: max(calls * latency, count * calls / rate),
            )
    for most, seconds in ((10, 1), (100, 1), (200, 5)):
        for say_when in (False, True):
            yield Scenario(
                f"{most} in each {seconds} s{', says when' if say_when else ''}",
                lambda *_, most=most, seconds=seconds, say_when=say_when: WindowLimit(
                    most, seconds, say_when=say_when
                ),
                lambda count, calls, latency, most=most, seconds=seconds: max(
                    calls * latency, count * calls / most * seconds
                ),
            )
    yield Scenario(
        "10 in any 1 s",
        lambda *_: SlidingLimit(10, 1.0),
        lambda count, calls, latency: max(calls * latency, count * calls / 10),
    )
    for share in (0.02, 0.05, 0.1, 0.2, 0.3, 0.4):
        yield Scenario(
            f"{share:.0%} by chance",
            lambda _, chance, share=share: lambda: refused() if chance.random() < share else None,
            lambda count, calls, latency, share=share: calls * latency / (1 - share),  # noqa: ARG005
        )
    for share, at_once in ((0.2, 1), (0.2, 20), (0.2, 200)):
        yield Scenario(
            f"{share:.0%} by chance, Retry-After: 1, {at_once} at once",
            lambda _, chance, share=share: (
                lambda: refused(retry_after=1.0) if chance.random() < share else None
            ),
            None,
            at_once,
        )
    yield Scenario(
        "each third",
        lambda *_: _each_third(),
        lambda count, calls, latency: calls * latency * 1.5,  # noqa: ARG005
    )


def _each_third() -> Verdict:
    numbers = itertools.count(1)
    return lambda: None if next(numbers) % 3 else refused()


@click.command(context_settings={"show_default": True})
@click.option("--rollouts", default=100, help="Rollouts side by side, and the most calls at once.")
@click.option("--calls", default=30, help="Calls of each, one after the other.")
@click.option("--latency", default=0.2, help="Seconds of an answer.")
@click.option("--refusal-latency", default=0.02, help="Seconds of a refusal.")
@click.option("--plays", default=5)
@click.option("--only", default="", help="Part of the names of the limits to play.")
def main(rollouts: int, calls: int, latency: float, refusal_latency: float, plays: int, only: str) -> None:
    """Print a table: each limit, the time as a multiple of the least possible, and the refused calls."""
    print(f"{rollouts} rollouts of {calls} calls, answers after {latency:g} s, {plays} plays")
    print(f"{'limit':43} {'least':>8} {'time':>8} {'ratio':>6} {'longest':>7} {'refused':>8}   at 1aab554")
    for name, limit, least_time, at_once in scenarios():
        if only not in name:
            continue
        times, shares, naive = [], [], []
        for play in range(plays):
            provider, other = (Provider(latency=latency, refusal_latency=refusal_latency) for _ in range(2))
            provider.verdict = limit(provider, random.Random(play))
            times.append(played(provider, at_once or rollouts, calls))
            shares.append(provider.refusals / len(provider.accepted))
            if least_time is None:
                other.verdict = limit(other, random.Random(play))
                naive.append(played(other, at_once or rollouts, calls, limited=False))
        least = least_time(rollouts, calls, latency) if least_time else statistics.median(naive)
        median = statistics.median(times)
        former = "{:6.2f} {:8.1%}".format(*FORMER[name]) if name in FORMER else ""
        print(
            f"{name:43} {least:6.1f} s {median:6.1f} s {median / least:6.2f} {max(times) / least:7.2f}"
            f" {statistics.median(shares):8.1%}   {former}".rstrip(),
            flush=True,
        )


if __name__ == "__main__":
    main()
