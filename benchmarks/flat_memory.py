"""The growth of memory over many rollouts of one evaluation.

    python benchmarks/flat_memory.py [--rollouts 10000]

Plays a small bundle with the gold agent, with all files of an evaluation, and prints the memory of the
process (resident, from /proc, after a garbage collection) after a fifth of the rollouts and after the last,
their ratio, and the growth per rollout: its line of the results, which is kept to the end.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent import agent_eval
from reward_kit.agent.evaluation.progress import NoProgress

if TYPE_CHECKING:
    from reward_kit.agent.evaluation.progress import Tally
    from reward_kit.agent.rollout.outcome import Outcome

TOOLS = '''
from reward_kit.agent import ToolRegistry

R = ToolRegistry("shop")

@R.tool(parameters={"item_id": int})
async def buy(item_id, db):
    """Buy one item."""
    item = await db.fetch_one("SELECT name FROM items WHERE id = :id", {"id": item_id})
    await db.execute("INSERT INTO orders(item_id) VALUES (:id)", {"id": item_id})
    return {"bought": item["name"], "receipt": "x" * 2000}
'''
REWARD = """
def evaluate(messages, *, db, gold_db, **kwargs):
    return {"score": float(db.equals(gold_db)), "reason": "compared"}
"""
SEED = """CREATE TABLE items(id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE orders(id INTEGER PRIMARY KEY, item_id INTEGER);
INSERT INTO items VALUES (1, 'lamp'), (2, 'chair');
"""


class MemoryAt(NoProgress):
    """Notes the resident memory, in bytes, after certain numbers of rollouts."""

    def __init__(self, *numbers: int) -> None:
        self.bytes = dict.fromkeys(numbers, 0)

    def ended(self, outcome: Outcome, tally: Tally) -> None:  # noqa: ARG002 - the protocol's signature
        if tally.done in self.bytes:
            gc.collect()
            self.bytes[tally.done] = resident()


def resident() -> int:
    """The memory of this process that is in use, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def write_bundle(folder: Path, rollouts: int) -> Path:
    """A bundle of one row; returns its dataset."""
    bundle = folder / "shop_task"
    bundle.mkdir()
    (bundle / "tools.py").write_text(TOOLS)
    (bundle / "reward.py").write_text(REWARD)
    (bundle / "seed.sql").write_text(SEED)
    row = {
        "id": "buy",
        "toolset": "shop_task.tools",
        "n_rollouts": rollouts,
        "initial_messages": [{"role": "user", "content": "Buy two things."}],
        "actions": [{"name": "buy", "arguments": {"item_id": number}} for number in (1, 2)],
    }
    (bundle / "task.jsonl").write_text(json.dumps(row) + "\n")
    return bundle / "task.jsonl"


def measure(rollouts: int, folder: Path) -> dict[int, int]:
    """The resident memory after a fifth of the rollouts and after all, by the number of rollouts."""
    memory = MemoryAt(rollouts // 5, rollouts)
    dataset = write_bundle(folder, rollouts)
    result = agent_eval(
        dataset, progress=memory, agent="gold", output_dir=str(folder / "runs"), keep_db="none"
    )
    assert result.score == 1.0
    return memory.bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rollouts", type=int, default=10_000)
    rollouts = parser.parse_args().rollouts
    clock = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        (early, before), (late, after) = measure(rollouts, Path(folder)).items()
    print(f"{early:>7} rollouts  {before / 2**20:7.1f} MiB")
    print(f"{late:>7} rollouts  {after / 2**20:7.1f} MiB")
    print(f"ratio {after / before:.3f}, {(after - before) / (late - early) / 1024:.2f} KiB a rollout")
    print(f"{time.perf_counter() - clock:.0f} s")


if __name__ == "__main__":
    main()
