"""Garbage is collected rarely while rollouts run."""

import gc
import weakref

from reward_kit.agent.evaluation.signals import RARELY, rare_collections


class Loop:
    """Garbage that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_is_collected_once_many_more_objects_are_there() -> None:
    before = gc.get_threshold()
    with rare_collections():
        garbage = weakref.ref(Loop())
        kept: list[list[None]] = [[] for _ in range(RARELY // 2)]
        assert garbage() is not None
        kept += ([] for _ in range(RARELY))
        assert garbage() is None
    assert gc.get_threshold() == before


def test_a_process_that_collects_nothing_goes_on_so() -> None:
    before = gc.get_threshold()
    gc.set_threshold(0)
    with rare_collections():
        assert gc.get_threshold()[0] == 0
    gc.set_threshold(*before)
