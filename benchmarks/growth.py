"""The cost of a rollout as an evaluation grows: playing it, reading it back, memory and disk.

    python benchmarks/growth.py [--sizes 100 1000 10000] [--rows-of 10]

Plays a small bundle with the gold agent, as any evaluation is played and saved, and then runs the commands
that read it. The baseline is the CPU time of one rollout among 1 000 (or the size nearest to that). To reach:
0.8 to 1.2 times as much at larger sizes, at most 5 KB of memory a rollout, and at most 40 microseconds a
rollout for each command that reads it.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

BASELINE = 1_000
"""Rollouts of the evaluation that others are compared with."""
TOOLS = '''
from reward_kit.agent import ToolRegistry

R = ToolRegistry("shop")

@R.tool(parameters={"item_id": int})
async def buy(item_id, db):
    """Buy one item."""
    item = await db.fetch_one("SELECT name FROM items WHERE id = :id", {"id": item_id})
    await db.execute("INSERT INTO orders(item_id) VALUES (:id)", {"id": item_id})
    return {"bought": item["name"]}
'''
REWARD = """
def evaluate(messages, *, db, gold_db, **kwargs):
    return {"score": float(db.equals(gold_db)), "reason": "compared"}
"""
SEED = """CREATE TABLE items(id INTEGER PRIMARY KEY, name TEXT);
CREATE TABLE orders(id INTEGER PRIMARY KEY, item_id INTEGER);
INSERT INTO items VALUES (1, 'lamp'), (2, 'chair');
"""
PLAY = """
import json, os, sys, time
from reward_kit.agent import evaluate
from reward_kit.agent.evaluation.progress import NoProgress

dataset, runs = sys.argv[1:]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

class Begun(NoProgress):
    def started(self, tally):
        self.memory, self.wall, self.cpu = resident(), time.perf_counter(), time.process_time()

begun = Begun()
evaluate(dataset, agent="gold", output_dir=runs, eval_id="e", progress=begun)
wall, cpu = time.perf_counter() - begun.wall, time.process_time() - begun.cpu
print(json.dumps({"wall": wall, "cpu": cpu, "memory": resident() - begun.memory}))
"""
RECORDS = """
import sys
from reward_kit.agent import load_evaluation

print(sum(len(record.messages) for record in load_evaluation(sys.argv[1]).records()))
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """One evaluation: ``seconds`` by command, ``memory`` that playing has added and ``disk`` in bytes."""

    rollouts: int
    wall: float
    cpu: float
    memory: int
    disk: int
    seconds: dict[str, float]


def write_bundle(folder: Path, rollouts: int, rollouts_of_row: int) -> Path:
    """The bundle, with as many rows as are needed; returns its dataset."""
    bundle = folder / "shop_task"
    bundle.mkdir()
    (bundle / "tools.py").write_text(TOOLS)
    (bundle / "reward.py").write_text(REWARD)
    (bundle / "seed.sql").write_text(SEED)
    row = {
        "toolset": "shop_task.tools",
        "n_rollouts": min(rollouts, rollouts_of_row),
        "initial_messages": [{"role": "user", "content": "Buy two things."}],
        "actions": [{"name": "buy", "arguments": {"item_id": number}} for number in (1, 2)],
    }
    lines = [
        json.dumps({"id": f"buy.{number}", **row}) for number in range(max(1, rollouts // rollouts_of_row))
    ]
    dataset = bundle / "task.jsonl"
    dataset.write_text("\n".join(lines))
    return dataset


def measure(rollouts: int, rollouts_of_row: int) -> Figures:
    """Play, then read back."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dataset = write_bundle(folder, rollouts, rollouts_of_row)
        python = [sys.executable, "-c"]
        played = json.loads(_run(folder, [*python, PLAY, str(dataset), "runs"])[0])
        file = folder / "runs" / "evals" / "e.db"
        disk = file.stat().st_size
        shutil.copy(file, file.with_stem("other"))
        command = [sys.executable, "-m", "reward_kit"]
        seconds = {
            "show": _run(folder, [*command, "show", "e"])[1],
            "resume": _run(folder, [*command, "agent-eval", "--resume", "e", "--quiet"])[1],
            "compare": _run(folder, [*command, "compare", "e", "other"])[1],
            "export": _run(folder, [*command, "export", "e", "--out", "lines.jsonl"])[1],
            "records": _run(folder, [*python, RECORDS, str(file)])[1],
        }
    return Figures(rollouts, played["wall"], played["cpu"], played["memory"], disk, seconds)


def _run(folder: Path, line: list[str]) -> tuple[str, float]:
    """The output of a command, and the CPU seconds of its process."""
    before = _cpu_of_children()
    done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise SystemExit(f"{' '.join(line)[:200]}\n{done.stderr}")
    return done.stdout, _cpu_of_children() - before


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def played_lines(measured: list[Figures]) -> Iterator[str]:
    """The table of what playing costs; memory is that of each rollout more than the smallest number."""
    baseline = min(measured, key=lambda one: abs(one.rollouts - BASELINE))
    smallest = measured[0]
    yield f"{'rollouts':>9} {'per s':>7} {'CPU ms':>7} {'of base':>8} {'memory KB':>10} {'disk KB':>8}"
    for one in measured:
        number = one.rollouts
        relative = (one.cpu / number) / (baseline.cpu / baseline.rollouts)
        more = number - smallest.rollouts
        memory = f"{(one.memory - smallest.memory) / more / 1024:.2f}" if more else ""
        yield (
            f"{number:>9} {number / one.wall:>7.0f} {one.cpu / number * 1e3:>7.2f} {f'{relative:.2f} x':>8}"
            f" {memory:>10} {one.disk / number / 1024:>8.2f}"
        )


def read_lines(measured: list[Figures]) -> Iterator[str]:
    """The table of what reading costs: CPU of the process, and its share of each further rollout."""
    smallest = measured[0]
    yield f"CPU seconds, and microseconds for each rollout more than {smallest.rollouts}"
    yield f"{'rollouts':>9} " + " ".join(f"{name:>16}" for name in smallest.seconds)
    for one in measured:
        cells = []
        for name, took in one.seconds.items():
            more = one.rollouts - smallest.rollouts
            share = f"{(took - smallest.seconds[name]) / more * 1e6:.0f} us" if more else ""
            cells.append(f"{took:>8.2f} {share:>7}")
        yield f"{one.rollouts:>9} " + " ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000], metavar="N")
    parser.add_argument("--rows-of", type=int, default=10, metavar="N", help="rollouts of each row")
    arguments = parser.parse_args()
    measured = [measure(size, arguments.rows_of) for size in sorted(arguments.sizes)]
    print("\n".join([*played_lines(measured), "", *read_lines(measured)]))


if __name__ == "__main__":
    main()
