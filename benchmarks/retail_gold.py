"""The cost of a task of the retail bundle, at several sizes of the domain.

    python benchmarks/retail_gold.py [--dataset tau_retail_task/task.jsonl] [--scale 1 10 100]

Each size is measured in a separate process, as CPU seconds per task:

- *bundle*: ``agent_eval`` with the gold agent: fork, calls, ground truth, reward, trajectory and final state
  on disk. Memory is the growth of the resident set from the end of the imports to its peak;
- *reload and hash*: an environment in this file that keeps the domain as JSON, as the benchmark does: it
  parses the JSON when it is made, when a task starts and again for the ground truth, and judges by two hashes
  over the whole domain. The calls are plain Python on dicts. Only some of the tasks are measured.

A domain of scale n has every user, order and product n times with different ids. So the answer of
``list_all_product_types`` is n times as long; other calls have the same work.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BUNDLE = ROOT / "tau_retail_task"
COPIES = '''
"""Every user, order and product again, {copies} times, under ids of their own."""

COPIED = (
    ("users", "user_id, email", "position"),
    ("payment_methods", "payment_method_id, user_id", ""),
    ("products", "product_id, name", ""),
    ("items", "item_id, product_id", ""),
    ("item_options", "item_id", ""),
    ("orders", "order_id, user_id", ""),
    ("order_items", "order_id, item_id", ""),
    ("payments", "order_id, payment_method_id", ""),
    ("fulfillments", "order_id", ""),
)

def seed(db):
    for table, names, counted in COPIED:
        columns = [row[1] for row in db.execute(f"PRAGMA table_info({{table}})")]
        values = [
            f"{{c}} || '~' || n" if c in names.split(", ") else f"{{c}} + 500 * n" if c == counted else c
            for c in columns
        ]
        db.execute(
            f"WITH RECURSIVE copy(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copy WHERE n < {copies}) "
            f"INSERT INTO {{table}} ({{', '.join(columns)}}) "
            f"SELECT {{', '.join(values)}} FROM {{table}}, copy"
        )
'''
FEW = 8
"""Tasks that the slow way is measured on."""


def bundle_of_scale(dataset: Path, scale: int, folder: Path) -> Path:
    """A copy of the bundle with a domain of this scale; the path of its dataset."""
    copy = folder / "tau_retail_task"
    shutil.copytree(BUNDLE, copy, ignore=shutil.ignore_patterns("__pycache__", "*.jsonl"))
    if scale > 1:
        (copy / "seed.py").write_text(COPIES.format(copies=scale - 1), encoding="utf-8")
    rows = [json.loads(line) for line in dataset.read_text(encoding="utf-8").splitlines() if line.strip()]
    for row in rows:
        row.pop("seed_sql", None)  # the bundle's seed files, of which there may be two now
        row["n_rollouts"] = 1
    target = copy / "task.jsonl"
    target.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return target


def measure_bundle(dataset: Path) -> dict[str, float]:
    """CPU seconds per task and mebibytes; everything is warm, and the base is seeded already."""
    from reward_kit.agent import agent_eval

    options: dict[str, Any] = {
        "agent": "gold",
        "quiet": True,
        "output_dir": str(dataset.parent.parent / "runs"),
    }
    agent_eval(dataset, **options, max_tasks=2)
    before = _resident()
    started = time.process_time()
    result = agent_eval(dataset, **options)
    seconds = time.process_time() - started
    tasks = len(dataset.read_text(encoding="utf-8").splitlines())
    if result.averages.reward.value != 1.0:
        raise SystemExit(f"average reward {result.averages.reward.value}, expected 1")
    return {"milliseconds": 1000 * seconds / tasks, "mebibytes": _peak() - before, "tasks": tasks}


def measure_reload(dataset: Path) -> dict[str, float]:
    """The same tasks the slow way, on the domain that the bundle's base holds."""
    sys.path.insert(0, str(ROOT / "tests" / "tau_retail"))
    from reference import domain_of, run

    from reward_kit.agent.database import Database

    bases = sorted((dataset.parent.parent / "runs").glob(".bases/*.db"))
    with Database.open(bases[0]) as base:
        text = json.dumps(domain_of(base.read_only()))
    tasks = [json.loads(line) for line in dataset.read_text(encoding="utf-8").splitlines()]
    chosen = tasks[:: max(1, len(tasks) // FEW)][:FEW]
    started = time.process_time()
    for task in chosen:
        hashes = []
        json.loads(text)  # what making the environment parses is parsed anew when the task starts
        for _ in ("the agent's data", "the ground truth"):
            data = json.loads(text)
            for action in task["actions"]:
                if action["name"] not in ("calculate", "transfer_to_human_agents"):
                    run(data, action["name"], action["arguments"])
            hashes.append(hashlib.sha256(str(_hashable(data)).encode()).hexdigest())
        assert hashes[0] == hashes[1]
    seconds = time.process_time() - started
    return {"milliseconds": 1000 * seconds / len(chosen), "tasks": len(chosen)}


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return tuple((key, _hashable(item)) for key, item in sorted(value.items()))
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / (1 << 20)


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _in_own_process(what: str, dataset: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--measure", what, "--dataset", str(dataset)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", type=Path, default=BUNDLE / "task.jsonl")
    parser.add_argument("--scale", type=int, nargs="+", default=[1, 10])
    parser.add_argument("--measure", choices=["bundle", "reload"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure = measure_bundle if options.measure == "bundle" else measure_reload
        print(json.dumps(measure(options.dataset)))
        return
    print(f"{'scale':>5}  {'bundle':>12}  {'memory':>9}  {'reload and hash':>16}  ratio")
    for scale in options.scale:
        with tempfile.TemporaryDirectory() as folder:
            dataset = bundle_of_scale(options.dataset, scale, Path(folder))
            bundle = _in_own_process("bundle", dataset)
            line = f"{scale:>5}  {bundle['milliseconds']:>9.2f} ms  {bundle['mebibytes']:>5.1f} MiB"
            if scale <= 10:  # at 100 it would take minutes and gigabytes
                slow = _in_own_process("reload", dataset)["milliseconds"]
                line += f"  {slow:>13.0f} ms  {slow / bundle['milliseconds']:.0f}x"
            print(line, flush=True)


if __name__ == "__main__":
    main()
