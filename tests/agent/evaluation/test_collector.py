"""Garbage is collected rarely while rollouts run, and memory stays bounded."""

import asyncio
import gc
import os
import weakref

import pytest

from reward_kit.agent.evaluation import signals
from reward_kit.agent.evaluation.signals import memory_of, rare_collections

pytestmark = pytest.mark.skipif(not memory_of(os.getpid()), reason="the system does not tell the memory")


class Loop:
    """Garbage that only a collection frees."""

    def __init__(self, size: int) -> None:
        self.itself = self
        self.data = b"x" * size


async def test_nothing_is_collected_until_the_memory_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(signals, "GROWTH", 0.0)
    monkeypatch.setattr(signals, "LEAST", 8 << 20)
    with rare_collections():
        assert not gc.isenabled()
        small = weakref.ref(Loop(1))
        await asyncio.sleep(0.1)
        assert small() is not None
        freed = asyncio.Event()
        weakref.finalize(Loop(64 << 20), freed.set)
        await freed.wait()
        assert small() is None
    assert gc.isenabled()


async def test_a_process_that_collects_nothing_is_left_alone() -> None:
    gc.disable()
    try:
        with rare_collections():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
