"""The benchmark of growth: each command runs at each size, and its table gives a line to each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "growth.py"


def test_each_size_has_its_lines() -> None:
    line = [sys.executable, str(SCRIPT), "--sizes", "2", "6", "--rows-of", "2"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.split("\n\n")
    assert [row.split()[0] for row in first.splitlines()] == ["rollouts", "2", "6"]
    assert [row.split()[0] for row in second.splitlines()[1:]] == ["rollouts", "2", "6"]
