"""What a rollout leaves in memory is its line of the results, and nothing that grows with what it did."""

import gc
import importlib
import runpy
import threading
import tracemalloc
from pathlib import Path
from typing import Any

from thorough import often

from reward_kit.agent import agent_eval
from reward_kit.agent.evaluation.progress import NoProgress

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "flat_memory.py"
FIRST, LAST = 60, often(240, 120)
BOUND = 3 * 1024
"""Bytes a rollout may leave behind; its tool results alone have 4 KB in this bundle."""


class TracedAt(NoProgress):
    """Notes the memory that Python holds after certain numbers of rollouts."""

    def __init__(self, *numbers: int) -> None:
        self.bytes = dict.fromkeys(numbers, 0)
        self.things = dict.fromkeys(numbers, (0, 0))

    def ended(self, outcome: Any, tally: Any) -> None:
        if tally.done in self.bytes:
            gc.collect()
            self.bytes[tally.done] = tracemalloc.get_traced_memory()[0]
            self.things[tally.done] = (threading.active_count(), len(list(Path("/proc/self/fd").iterdir())))


def test_hundreds_of_rollouts_leave_a_line_each(tmp_path: Path) -> None:
    importlib.import_module("reward_kit.agent.database.sqlalchemy_api")  # else it counts
    dataset = runpy.run_path(str(SCRIPT))["write_bundle"](tmp_path, LAST)
    memory = TracedAt(FIRST, LAST)
    tracemalloc.start()
    try:
        out = str(tmp_path / "runs")
        result = agent_eval(dataset, progress=memory, agent="gold", output_dir=out, keep_db="none")
    finally:
        tracemalloc.stop()
    assert (len(result.outcomes), result.score) == (LAST, 1.0)
    assert (memory.bytes[LAST] - memory.bytes[FIRST]) / (LAST - FIRST) < BOUND
    (threads, descriptors), (threads_later, descriptors_later) = memory.things[FIRST], memory.things[LAST]
    assert threads_later <= threads + 10  # those that wait for files and tools: some dozens at most
    assert descriptors_later <= descriptors + 10
