"""Whole rollouts per second: fork, tool calls, reward, record on disk, without any model.

    python benchmarks/gold_rollouts.py [--rollouts 300] [--megabytes 3]

One run measures three things on the same data and the same statements, and prints their ratios:

- *evaluation*: ``agent_eval`` with the gold agent, everything it writes included (trajectory, final
  state, log), with one and four rollouts a row; the ground truth's states are kept from an evaluation before;
- *statements*: only the database part of it, on forks of the same base;
- *copy + aiosqlite*: the same statements on a copy of the seeded file per rollout, through aiosqlite: what a
  harness does that copies its database. It neither calls tools, nor judges, nor records anything.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

CALLS = 10
READ = "SELECT id, name, price FROM items WHERE id = :id"
UPDATE = "UPDATE items SET stock = stock - 1 WHERE id = :id"
INSERT = "INSERT INTO orders(item_id, customer) VALUES (:id, :customer)"
TOOLS = f'''
from reward_kit.agent import ToolRegistry

R = ToolRegistry("shop")

@R.tool(parameters={{"item_id": int, "customer": str}})
async def buy(item_id, customer, db):
    """Buy one item."""
    item = await db.fetch_one("{READ}", {{"id": item_id}})
    await db.execute("{UPDATE}", {{"id": item_id}})
    await db.execute("{INSERT}", {{"id": item_id, "customer": customer}})
    return {{"bought": item["name"]}}
'''
REWARD = """
from reward_kit import reward_function, RewardOutput

@reward_function
def evaluate(messages, *, db, gold_db, **kwargs):
    return RewardOutput(score=float(db.equals(gold_db)), reason="compared")
"""
ITEM_IDS = [1 + 97 * number for number in range(CALLS)]


def seed_sql(megabytes: float) -> str:
    rows = round(megabytes * 1_000_000 / 230)
    return f"""CREATE TABLE items(id INTEGER PRIMARY KEY, name TEXT, price REAL, stock INTEGER, text TEXT);
CREATE TABLE orders(id INTEGER PRIMARY KEY, item_id INTEGER, customer TEXT);
INSERT INTO items
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
    SELECT i, 'item ' || i, i * 1.5, 100, hex(zeroblob(100)) FROM n;
"""


def write_bundle(folder: Path, rollouts: int, megabytes: float) -> Path:
    folder.mkdir()
    (folder / "tools.py").write_text(TOOLS)
    (folder / "reward.py").write_text(REWARD)
    (folder / "seed.sql").write_text(seed_sql(megabytes))
    actions = [{"name": "buy", "arguments": {"item_id": item, "customer": "Ann"}} for item in ITEM_IDS]
    rows = [
        {
            "id": f"row{number:04}",
            "toolset": "shop_task.tools",
            "initial_messages": [{"role": "user", "content": "Ten items, please."}],
            "actions": actions,
        }
        for number in range(rollouts)
    ]
    (folder / "task.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "task.jsonl"


class Measured:
    """Seconds of wall clock and of CPU per rollout."""

    def __init__(self, rollouts: int) -> None:
        self._rollouts = rollouts

    def __enter__(self) -> Measured:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.wall = (time.perf_counter() - self._wall) / self._rollouts
        self.cpu = (time.process_time() - self._cpu) / self._rollouts


def measure_evaluation(dataset: Path, output: Path, rollouts: int, keep: str, per_row: int) -> Measured:
    from reward_kit.agent import agent_eval

    options: dict[str, Any] = {"agent": "gold", "output_dir": str(output), "keep_db": keep}
    agent_eval(dataset, max_tasks=rollouts // per_row, **options)  # imports, seeds, keeps gold states
    with Measured(rollouts) as measured:
        result = agent_eval(dataset, max_tasks=rollouts // per_row, n_rollouts=per_row, **options)
    assert result.planned == rollouts, "--rollouts has to be a multiple of 4"
    assert result.score == 1.0, "every gold rollout passes"
    return measured


async def side_by_side(rollouts: int, play: Callable[[int], Awaitable[None]]) -> None:
    waiting = iter(range(rollouts))

    async def work() -> None:
        for number in waiting:
            await play(number)

    await asyncio.gather(*(work() for _ in range(10)))


def measure_statements(base_path: Path, rollouts: int) -> Measured:
    from reward_kit.agent import Database

    with Database.open(base_path) as base:

        async def play(number: int) -> None:
            with base.fork(seed=number) as fork:
                for item in ITEM_IDS:
                    async with fork.tool_call():
                        await run_statements(fork, item)
                fork.changes()

        with Measured(rollouts) as measured:
            asyncio.run(side_by_side(rollouts, play))
    return measured


async def run_statements(db: Any, item: int) -> None:
    await db.fetch_one(READ, {"id": item})
    await db.execute(UPDATE, {"id": item})
    await db.execute(INSERT, {"id": item, "customer": "Ann"})


def measure_copies(base_path: Path, folder: Path, rollouts: int) -> Measured:
    import aiosqlite

    folder.mkdir()

    async def play(number: int) -> None:
        copy = folder / f"{number}.db"
        shutil.copyfile(base_path, copy)
        async with aiosqlite.connect(copy) as db:
            for item in ITEM_IDS:
                async with db.execute(READ, {"id": item}) as cursor:
                    await cursor.fetchone()
                await db.execute(UPDATE, {"id": item})
                await db.execute(INSERT, {"id": item, "customer": "Ann"})
                await db.commit()

    with Measured(rollouts) as measured:
        asyncio.run(side_by_side(rollouts, play))
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=300)
    parser.add_argument("--megabytes", type=float, default=3.0, help="size of the seeded database")
    arguments = parser.parse_args()
    rollouts = arguments.rollouts
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dataset = write_bundle(folder / "shop_task", rollouts, arguments.megabytes)
        measured = {}
        for keep, per_row in (("delta", 1), ("delta", 4), ("full", 4), ("none", 4)):
            output = folder / f"{keep}{per_row}"
            one = measure_evaluation(dataset, output, rollouts, keep, per_row)
            measured[f"evaluation, {per_row} a row, keep {keep}"] = one
        (base,) = (folder / "delta1" / ".bases").glob("*.db")
        measured["statements on forks, no files"] = measure_statements(base, rollouts)
        baseline = measure_copies(base, folder / "copies", rollouts)
        size = base.stat().st_size / 1e6
        print(
            f"{rollouts} rollouts of {CALLS} calls and {3 * CALLS} statements on {size:.1f} MB, "
            f"Python {sys.version.split()[0]}"
        )
        print(f"{'':36}{'rollouts/s':>11}{'wall ms':>9}{'CPU ms':>9}{'wall ratio':>12}{'CPU ratio':>11}")
        for name, one in {**measured, "copy + aiosqlite (ratios to this)": baseline}.items():
            print(
                f"{name:36}{1 / one.wall:11.0f}{one.wall * 1e3:9.2f}{one.cpu * 1e3:9.2f}"
                f"{one.wall / baseline.wall:12.2f}{one.cpu / baseline.cpu:11.2f}"
            )


if __name__ == "__main__":
    main()
