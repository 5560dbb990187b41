"""A provider that answers in virtual time, and remembers who asked when."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from reward_kit.agent.base.types import Completion, Usage
from reward_kit.agent.models.calls import Call, Caller
from reward_kit.agent.models.limiter import Limiter, ask
from reward_kit.errors import ModelError


def now() -> float:
    return asyncio.get_running_loop().time()


def refused(status: int = 429, retry_after: float | None = None) -> ModelError:
    return ModelError(f"HTTP {status}", status=status, retryable=True, retry_after=retry_after)


def unreachable() -> ModelError:
    return ModelError("cannot connect", retryable=True, no_answer="connection")


def answer() -> Completion:
    usage = Usage(calls=1, input_tokens=90, output_tokens=10)
    return Completion({"role": "assistant", "content": "Hi"}, usage)


@dataclass
class Provider:
    """``verdict`` says, as a request comes in, what it gets instead of an answer (None: an answer)."""

    latency: float = 0.2
    refusal_latency: float = 0.005
    verdict: Callable[[], ModelError | None] = lambda: None
    headers: Callable[[], Mapping[str, Any]] | None = None
    arrivals: list[float] = field(default_factory=list)
    accepted: list[float] = field(default_factory=list)
    refusals: int = 0
    under_way: int = 0
    peak: int = 0

    async def attempt(self, limiter: Limiter | None = None) -> Completion | ModelError:
        arrived = now()
        self.arrivals.append(arrived)
        self.under_way += 1
        self.peak = max(self.peak, self.under_way)
        fault = self.verdict()
        try:
            await asyncio.sleep(self.refusal_latency if fault is not None and fault.status else self.latency)
        finally:
            self.under_way -= 1
        if limiter is not None and self.headers is not None:
            limiter.read_headers(self.headers())
        if fault is not None:
            self.refusals += 1
            return fault
        self.accepted.append(arrived)
        return answer()

    async def ask(self, limiter: Limiter, *, caller: Caller | None = None) -> Completion:
        attempt = partial(self.attempt, limiter)
        return await ask(attempt, Call(caller=caller or Caller()), retries=3, backoff=1.0, limiter=limiter)

    def most_within(self, seconds: float) -> int:
        """The largest number of requests that came within any so many seconds."""
        times = sorted(self.arrivals)
        return max((bisect_left(times, begin + seconds) - n for n, begin in enumerate(times)), default=0)


async def rollouts(provider: Provider, limiter: Limiter, count: int, calls: int) -> list[Any]:
    """So many rollouts side by side, each with some calls one after the other; exceptions are returned."""

    async def one() -> None:
        for _ in range(calls):
            await provider.ask(limiter)

    return await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)


async def without_limiter(provider: Provider, count: int, calls: int) -> None:
    """The rollouts where each refused call waits as long as it is told, and no other does."""

    async def one() -> None:
        for _ in range(calls):
            answered = False
            while not answered:
                fault = await provider.attempt()
                answered = isinstance(fault, Completion)
                await asyncio.sleep(getattr(fault, "retry_after", 0.0))

    await asyncio.gather(*(one() for _ in range(count)))


class BucketLimit:
    """So many calls a second, and ``burst`` at once; ``named`` makes the time that a refusal names.

    It is given the seconds until a call would be answered.
    """

    def __init__(self, rate: float, burst: int, named: Callable[[float], float] | None = None) -> None:
        self._rate, self._burst, self._named = rate, burst, named
        self._left, self._at = float(burst), 0.0

    def __call__(self) -> ModelError | None:
        self._left = min(self._burst, self._left + (now() - self._at) * self._rate)
        self._at = now()
        if self._left < 1:
            return refused(retry_after=self._named and self._named((1 - self._left) / self._rate))
        self._left -= 1
        return None


class WindowLimit:
    """At most ``most`` requests in each fixed window of ``seconds``; others are told when the next begins."""

    def __init__(self, most: int, seconds: float, *, say_when: bool = True) -> None:
        self.most = most
        self.seconds = seconds
        self.say_when = say_when
        self._window = -1.0
        self._taken = 0

    def __call__(self) -> ModelError | None:
        window = now() // self.seconds
        if window != self._window:
            self._window, self._taken = window, 0
        if self._taken >= self.most:
            left = (window + 1) * self.seconds - now()
            return refused(retry_after=left if self.say_when else None)
        self._taken += 1
        return None
