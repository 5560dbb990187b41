"""What is measured, and one run of it in a fresh process."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from environments import Contender

ANSWER_SECONDS = 0.2
SETTINGS = {
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
        Scenario("not saved", rollouts, 100, 0.0, save=False),
        *(Scenario(f"{crowd} at once", crowd, crowd, ANSWER_SECONDS) for crowd in crowds),
    ]


def run_once(contender: Contender, scenario: Scenario, limit: float) -> dict[str, Any]:
    """The figures of one run, or ``{"failed": why}``."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        began = time.perf_counter()
        try:
            done = _run(contender.run_line(*scenario.options(out)), folder, limit)
        except subprocess.TimeoutExpired:
            return {"failed": f"over {limit:.0f} s", "process_s": limit}
        took = time.perf_counter() - began
        if done.returncode or not out.exists():
            return {"failed": (done.stderr.strip().splitlines() or ["no output"])[-1], "process_s": took}
        return {**json.loads(out.read_text()), "process_s": took}


def time_line(line: list[str], limit: float) -> float | None:
    """Wall seconds of a command; None if it failed."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        try:
            done = _run(line, folder, limit)
        except (subprocess.TimeoutExpired, OSError):
            return None
        return None if done.returncode else time.perf_counter() - began


def _run(line: list[str], folder: str, limit: float) -> subprocess.CompletedProcess[str]:
    """Run ``line`` in ``folder``, which is its home too: nothing is left in the real one."""
    settings = {**os.environ, **SETTINGS, "HOME": folder}
    return subprocess.run(line, capture_output=True, text=True, timeout=limit, cwd=folder, env=settings)
