"""The measurements, and one run of each in a fresh process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from environments import Contender

SAMPLE_SECONDS = 0.1
"""Time between two readings of the memory of a run's processes."""

ANSWER_SECONDS = 0.2
SETTINGS = {
    "PYTHONDONTWRITEBYTECODE": "",  # where it is set, each process would compile what it imports
    "HF_HUB_OFFLINE": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # without it eval-protocol asks the network
    "FIREWORKS_API_KEY": "none",  # nor does its command print its help without one
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One setting of the harness scripts; ``delay`` is the seconds that each answer takes."""

    name: str
    rollouts: int
    at_once: int
    delay: float
    save: bool = True

    def options(self, out: Path) -> list[str]:
        """For the harness scripts."""
        return [
            *("--rollouts", str(self.rollouts), "--at-once", str(self.at_once)),
            *("--delay", str(self.delay), "--save", "yes" if self.save else "no"),
            *("--out", str(out)),
        ]


def scenarios(rollouts: int, crowds: list[int]) -> list[Scenario]:
    """Zero latency with ``rollouts`` rollouts, 100 at once; then each crowd at once, with slow answers."""
    return [
        Scenario("saved", rollouts, 100, 0.0),
        Scenario("in memory", rollouts, 100, 0.0, save=False),
        *(Scenario(f"{crowd} at once", crowd, crowd, ANSWER_SECONDS) for crowd in crowds),
    ]


def run_once(contender: Contender, scenario: Scenario, limit: float, folder: Path) -> dict[str, Any]:
    """The figures of one run, or ``{"failed": why}``.

    Whatever is saved stays in ``folder``: deleting thousands of files slows ext4 for the next run.
    """
    home = Path(tempfile.mkdtemp(dir=folder))
    out = home / "out.json"
    began = time.perf_counter()
    done = _run(contender.run_line(*scenario.options(out)), home, limit)
    took = time.perf_counter() - began
    if done is None:
        return {"failed": f"over {limit:.0f} s", "process_s": limit}
    if done.code or not out.exists():
        return {"failed": (done.errors.strip().splitlines() or ["no output"])[-1], "process_s": took}
    figures = json.loads(out.read_text())
    peak = max(done.peak_kilobytes, figures["rss_peak_kb"])
    return {**figures, "process_s": took, "all_peak_kb": peak}


def time_line(line: list[str], limit: float, folder: Path) -> float | None:
    """Wall seconds of a command; None if it failed."""
    began = time.perf_counter()
    try:
        done = _run(line, Path(tempfile.mkdtemp(dir=folder)), limit)
    except OSError:
        return None
    return None if done is None or done.code else time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Done:
    """A process that ended; ``peak_kilobytes`` is the largest sum over it and its descendants."""

    code: int
    errors: str
    peak_kilobytes: int


def _run(line: list[str], home: Path, limit: float) -> Done | None:
    """Run ``line`` in ``home``, so that nothing is left in the real one; None if it takes too long."""
    settings = {**os.environ, **SETTINGS, "HOME": str(home)}
    errors = home / "stderr"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            line, stdout=subprocess.DEVNULL, stderr=stderr, cwd=home, env=settings, start_new_session=True
        )
    ends, peak = time.perf_counter() + limit, 0
    while process.poll() is None:
        if time.perf_counter() > ends:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
        peak = max(peak, sum(map(_memory_kilobytes, _processes_of(process.pid))))
        time.sleep(SAMPLE_SECONDS)
    return Done(process.returncode, errors.read_text(errors="replace"), peak)


def _processes_of(root: int) -> Iterator[Path]:
    """Folders under ``/proc`` of a process and its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [root]
    while found:
        process = found.pop()
        found += children.get(process, [])
        yield Path("/proc") / str(process)


def _memory_kilobytes(process: Path) -> int:
    """Proportional set size: pages that several processes share are counted once in all."""
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
