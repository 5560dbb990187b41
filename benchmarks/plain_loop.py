"""The overhead of a rollout: this package beside the same task written by hand.

    python benchmarks/plain_loop.py [--repeats 5] [--rollouts 300] [--instructions]

Both play the shop of ``benchmarks/peers`` on copy-on-write forks and save everything in synced groups; the
loop by hand is ``peers/harnesses/by_hand.py``. Each run is a fresh process, and they take turns, so that a
busy machine slows both alike. Printed are the medians, and the ratio of each to the loop by hand.

``--instructions`` counts them with valgrind's cachegrind instead: runs of 210 and of 10 rollouts, and the
difference divided by 200. That repeats to 0.1 % on a busy machine, and takes some minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HARNESSES = Path(__file__).parent / "peers" / "harnesses"
CONTENDERS = {"by hand": "by_hand.py", "reward-kit": "with_reward_kit.py"}
MODEL_TURNS = 10
FEW, MANY = 10, 210


def run(script: str, rollouts: int, at_once: int, *before: str) -> dict[str, float]:
    """The figures that one run measures of itself; ``before`` is a program that runs it."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary, "figures.json")
        options = ["--rollouts", str(rollouts), "--at-once", str(at_once), "--out", str(out)]
        line = [*before, sys.executable, str(HARNESSES / script), *options]
        subprocess.run(line, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": "0"})
        figures: dict[str, float] = json.loads(out.read_text())
        return figures


def instructions(script: str, at_once: int) -> float:
    """Instructions of one rollout, start and end of the process left out."""
    counted = []
    for rollouts in (FEW, MANY):
        with tempfile.NamedTemporaryFile() as out:
            cachegrind = ["valgrind", "--tool=cachegrind", "--cache-sim=no"]
            run(script, rollouts, at_once, *cachegrind, f"--cachegrind-out-file={out.name}")
            summary = Path(out.name).read_text().rpartition("summary:")[2]
            counted.append(int(summary))
    return (counted[1] - counted[0]) / (MANY - FEW)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rollouts", type=int, default=300)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--instructions", action="store_true", help="count instructions with valgrind")
    arguments = parser.parse_args()
    if arguments.instructions:
        if shutil.which("valgrind") is None:
            sys.exit("--instructions needs valgrind on the PATH")
        counts = {name: instructions(script, arguments.at_once) for name, script in CONTENDERS.items()}
        for name, count in counts.items():
            print(f"{name:12}{count / 1e6:8.2f} M instructions a rollout{count / counts['by hand']:8.2f}x")
        return
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    for _ in range(arguments.repeats):
        for name, script in CONTENDERS.items():
            runs[name].append(run(script, arguments.rollouts, arguments.at_once))
    medians = {
        name: {field: statistics.median(one[field] for one in found) for field in found[0]}
        for name, found in runs.items()
    }
    yardstick = medians["by hand"]
    print(f"{arguments.rollouts} rollouts, {arguments.at_once} at once; medians of {arguments.repeats}")
    for name, figures in medians.items():
        cpu, wall = figures["cpu_s"], figures["wall_s"]
        micros = cpu * 1e6 / arguments.rollouts / MODEL_TURNS
        print(
            f"{name:12}{micros:8.0f} µs of CPU a turn{cpu / yardstick['cpu_s']:8.2f}x"
            f"{arguments.rollouts / wall:8.0f} rollouts/s{wall / yardstick['wall_s']:8.2f}x the time"
        )


if __name__ == "__main__":
    main()
