"""How often garbage is collected while an evaluation runs."""

from __future__ import annotations

import asyncio
import gc
import mmap
import weakref
from pathlib import Path

import pytest
from flight_bundle import GOLD, flight_bundle

from reward_kit.agent import agent_eval, garbage
from reward_kit.agent.garbage import rare_collections


def rarely() -> int:
    return garbage.ALLOCATIONS if Path("/proc/self/statm").exists() else garbage.UNWATCHED_ALLOCATIONS


@pytest.mark.parametrize(("set_before", "within"), [(700, None), (900_000, 900_000), (0, 0)])
def test_more_rarely_within_and_as_before_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_before: int, within: int | None
) -> None:
    bundle = flight_bundle(tmp_path)
    bundle.rows({"actions": GOLD, "n_rollouts": 1})
    monkeypatch.chdir(tmp_path)
    seen = []

    class Looks:
        def started(self, tally: object) -> None: ...

        def ended(self, outcome: object, tally: object) -> None:
            seen.append(gc.get_threshold()[0])

        def closed(self, tally: object) -> None: ...

    usual = gc.get_threshold()
    gc.set_threshold(set_before, 10, 10)
    try:
        agent_eval(bundle.dataset, agent="gold", progress=Looks())
        assert seen == [rarely() if within is None else within]
        assert gc.get_threshold() == (set_before, 10, 10)
    finally:
        gc.set_threshold(*usual)


class Held:
    """Garbage that only a collection frees: few objects, much memory.

    Mapped, so that it is not taken from what the process has kept of earlier tests' memory.
    """

    def __init__(self) -> None:
        self.itself = self
        self.much = mmap.mmap(-1, 4 << 20)
        self.much.write(b"x" * (4 << 20))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="nothing tells how much memory is in use")
async def test_little_garbage_that_holds_much_memory_is_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "LOOK_EVERY", 0.001)
    alive: weakref.WeakSet[Held] = weakref.WeakSet()
    most = 0
    gc.collect()
    with rare_collections():
        for _ in range(200):
            alive.add(Held())
            most = max(most, len(alive))
            await asyncio.sleep(0.002)
    assert most < 100


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="nothing tells how much memory is in use")
async def test_memory_that_is_in_use_is_looked_through_when_it_has_grown_and_not_at_every_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(garbage, "LOOK_EVERY", 0.001)
    memory = 100 << 20
    monkeypatch.setattr(garbage, "memory_in_use", lambda: memory)
    collections = []
    monkeypatch.setattr(gc, "collect", lambda: collections.append(memory))
    with rare_collections():
        for memory in (150 << 20, 160 << 20, 160 << 20, 400 << 20, 400 << 20):  # noqa: B007 - read by the lambda
            await asyncio.sleep(0.02)
    assert [one >> 20 for one in collections] == [160, 400]
    await asyncio.sleep(0.02)
    memory = 4000 << 20
    await asyncio.sleep(0.02)
    assert len(collections) == 2
