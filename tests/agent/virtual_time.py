"""Time that passes only while everybody waits: hours of waiting are simulated in milliseconds, exactly.

For code that waits on timers alone: ``asyncio.sleep``, ``call_later``, ``loop.time()``. There is no network.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Instead of waiting, moves the clock on."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.steps = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits, and nothing will ever happen")
        self.now += max(0.0, timeout)
        self.steps += 1
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.clock = _Selector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def simulate(main: Coroutine[Any, Any, T], most_steps: int | None = None) -> T:
    """Run ``main`` in a loop of its own with virtual time; the loop wakes ``most_steps`` times at most."""
    loop = VirtualLoop()
    try:
        result = loop.run_until_complete(main)
        assert most_steps is None or loop.clock.steps <= most_steps, f"{loop.clock.steps} steps"
        return result
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left))
        loop.close()
