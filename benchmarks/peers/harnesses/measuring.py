"""The measurements that a harness process makes of itself, and the file with its result.

Each ``with_*.py`` script is run by ``benchmarks/peers/run.py`` in a fresh process:

    python with_x.py --rollouts 100 --at-once 100 --delay 0 --save yes --out result.json

It warms up with a few rollouts (imports, caches), then measures one run of all of them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

WARM_UP = 4


def parse_arguments(*flags: str, numbers: tuple[str, ...] = ()) -> argparse.Namespace:
    """Options of every harness script, ``flags`` and ``numbers`` of this one; ``save`` becomes a bool."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rollouts", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=100)
    parser.add_argument("--delay", type=float, default=0.0, help="seconds that each answer takes")
    parser.add_argument("--save", choices=["yes", "no"], default="yes")
    parser.add_argument("--out", type=Path)
    for flag in flags:
        parser.add_argument(flag, action="store_true")
    for number in numbers:
        parser.add_argument(number, type=int)
    arguments = parser.parse_args()
    arguments.save = arguments.save == "yes"
    return arguments


def memory_kilobytes(field: str) -> int:
    """``VmRSS`` (now) or ``VmHWM`` (peak) of this process, in KiB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"no {field} in /proc/self/status")


def cpu_seconds() -> float:
    """CPU time of this process, all threads, and of the children that ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measure(
    arguments: argparse.Namespace, play: Callable[[int, Path], None], *, warm_up: int = WARM_UP
) -> None:
    """Warm up, then measure ``play(rollouts, folder)``; writes the figures as JSON to ``--out``.

    ``folder`` is an empty place for what the harness saves.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.chdir(folder)  # whatever a harness writes beside its results goes away as well
        if warm_up:
            play(warm_up, folder / "warm-up")
        gc.collect()
        before = memory_kilobytes("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
        cpu, wall = cpu_seconds(), time.perf_counter()
        play(arguments.rollouts, folder / "measured")
        figures: dict[str, Any] = {
            "wall_s": time.perf_counter() - wall,
            "cpu_s": cpu_seconds() - cpu,
            "rss_before_kb": before,
            "rss_peak_kb": memory_kilobytes("VmHWM"),
            "rss_largest_child_kb": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss,
            "saved_bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()),
            "rollouts": arguments.rollouts,
            "at_once": arguments.at_once,
            "load": os.getloadavg()[0],
        }
    text = json.dumps(figures)
    if arguments.out:
        arguments.out.write_text(text)
    else:
        print(text)
