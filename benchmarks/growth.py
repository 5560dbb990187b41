"""The cost of a rollout as an evaluation grows: playing it, reading it back, memory and disk.

    python benchmarks/growth.py [--sizes 100 1000 10000] [--rows-of 10]

Plays a small bundle with the gold agent, as any evaluation is played and saved, runs the commands that read
it, serves its pages, and validates a dataset of as many rows. The baseline is the CPU time of one rollout
among 1 000 (or the size nearest to that). To reach: 0.8 to 1.2 times as much at larger sizes, at most 5 KB of
memory a rollout, at most 40 microseconds a rollout for each command that reads it, and for 100 000 rollouts
at most 150 MB to write the results, 0.3 seconds to search texts, 100 MB for the server, and 30 seconds to
validate as many rows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

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
import json, os, resource, sys, time
from reward_kit.agent import evaluate
from reward_kit.agent.evaluation.progress import NoProgress

dataset, runs = sys.argv[1:]

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

class Begun(NoProgress):
    def started(self, tally):
        self.memory, self.wall, self.cpu = resident(), time.perf_counter(), time.process_time()

    def ended(self, outcome, tally):
        if tally.done == tally.planned:
            self.at_the_end = resident()

begun = Begun()
evaluate(dataset, agent="gold", output_dir=runs, eval_id="e", progress=begun)
wall, cpu = time.perf_counter() - begun.wall, time.process_time() - begun.cpu
results = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - begun.at_the_end
played = begun.at_the_end - begun.memory
print(json.dumps({"wall": wall, "cpu": cpu, "memory": played, "results": results}))
"""
SERVE = """
import socket, sys
from pathlib import Path
from reward_kit.agent.reports.pages.site import serve

serve(Path("runs"), socket.socket(fileno=int(sys.argv[1])))
"""
PAGES = {
    "first page": "",
    "first search": "?by=rollouts&text=lamp",
    "search, all": "?by=rollouts&text=chair",
    "search, none": "?by=rollouts&text=zebra",
    "sort": "?by=rollouts&sort=-time",
}
"""Addresses of pages, in the order in which they are asked for."""
RECORDS = """
import sys
from reward_kit.agent import load_evaluation

print(sum(len(record.messages) for record in load_evaluation(sys.argv[1]).records()))
"""


class Used(NamedTuple):
    """The output of a process, its CPU seconds, and the most bytes of memory that it had."""

    output: str
    cpu: float
    memory: int


@dataclass(frozen=True, slots=True)
class Figures:
    """One evaluation: ``seconds`` by command, ``memory`` that playing has added and ``disk`` in bytes.

    ``results`` are the bytes of memory that writing the results has added. ``pages`` are seconds by page,
    ``server`` the bytes of memory at the beginning, at the end, and at most. ``validated`` is the validation
    of a dataset of as many rows.
    """

    rollouts: int
    wall: float
    cpu: float
    memory: int
    results: int
    disk: int
    seconds: dict[str, float]
    pages: dict[str, float]
    server: tuple[int, int, int]
    validated: Used


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
        played = json.loads(_run(folder, [*python, PLAY, str(dataset), "runs"]).output)
        file = folder / "runs" / "evals" / "e.db"
        disk = file.stat().st_size
        shutil.copy(file, file.with_stem("other"))
        command = [sys.executable, "-m", "reward_kit"]
        seconds = {
            "show": _run(folder, [*command, "show", "e"]).cpu,
            "resume": _run(folder, [*command, "agent-eval", "--resume", "e", "--quiet"]).cpu,
            "compare": _run(folder, [*command, "compare", "e", "other"]).cpu,
            "export": _run(folder, [*command, "export", "e", "--out", "lines.jsonl"]).cpu,
            "records": _run(folder, [*python, RECORDS, str(file)]).cpu,
        }
        file.with_stem("other").unlink()
        with _served(folder) as (process, address):
            server = [_memory_of(process, "VmRSS")]
            pages = {name: _seconds_of(f"{address}/evals/e.html{query}") for name, query in PAGES.items()}
            server += [_memory_of(process, "VmRSS"), _memory_of(process, "VmHWM")]
    with tempfile.TemporaryDirectory() as name:
        dataset = write_bundle(Path(name), rollouts, 1)
        validated = _run(
            Path(name), [*command, "agent-eval", "--dataset", str(dataset), "--validate-only", "--quiet"]
        )
    sizes = played["memory"], played["results"], disk
    return Figures(rollouts, played["wall"], played["cpu"], *sizes, seconds, pages, (*server,), validated)


def _run(folder: Path, line: list[str]) -> Used:
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(line, cwd=folder, stdout=output, stderr=errors)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        for stream in (output, errors):
            stream.seek(0)
        if process.returncode:
            raise SystemExit(f"{' '.join(line)[:200]}\n{errors.read()}")
        return Used(output.read(), used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


@contextmanager
def _served(folder: Path) -> Iterator[tuple[int, str]]:
    """The process that serves the pages of a folder, and its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)
        number = listener.fileno()
        line = [sys.executable, "-c", SERVE, str(number)]
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = subprocess.Popen(line, cwd=folder, pass_fds=[number])
    try:
        with suppress(HTTPError):  # there is no such page, but all that is imported is loaded
            _seconds_of(f"{address}/none.html")
        yield process.pid, address
    finally:
        process.terminate()
        process.wait()


def _seconds_of(address: str) -> float:
    start = time.perf_counter()
    with urlopen(address) as answer:
        answer.read()
    return time.perf_counter() - start


def _memory_of(process: int, name: str) -> int:
    """Bytes: ``VmRSS`` now, ``VmHWM`` at most."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


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


def other_lines(measured: list[Figures]) -> Iterator[str]:
    """The table of memory for results, of the server's pages and memory, and of validation."""
    yield "Memory that results add; server: memory at start, end, and most, seconds of pages; validation"
    heads = ["results MB", "start MB", "end MB", "most MB", *PAGES, "validate CPU", "MB"]
    yield f"{'rollouts':>9} " + " ".join(f"{name:>12}" for name in heads)
    for one in measured:
        cells = [f"{size / 1e6:.0f}" for size in (one.results, *one.server)]
        cells += [f"{took:.2f}" for took in one.pages.values()]
        cells += [f"{one.validated.cpu:.1f}", f"{one.validated.memory / 1e6:.0f}"]
        yield f"{one.rollouts:>9} " + " ".join(f"{cell:>12}" for cell in cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000], metavar="N")
    parser.add_argument("--rows-of", type=int, default=10, metavar="N", help="rollouts of each row")
    arguments = parser.parse_args()
    measured = [measure(size, arguments.rows_of) for size in sorted(arguments.sizes)]
    print("\n".join([*played_lines(measured), "", *read_lines(measured), "", *other_lines(measured)]))


if __name__ == "__main__":
    main()
