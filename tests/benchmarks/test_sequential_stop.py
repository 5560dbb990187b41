"""The benchmark of the stopping rule: its tables of simulated agents and of a stored evaluation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from flight_bundle import flight_bundle
from planned_agent import evaluate

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sequential_stop.py"


def lines(*arguments: str) -> list[list[str]]:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return [line.split() for line in done.stdout.splitlines()[1:]]


def test_each_agent_and_difference_has_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lines("--draws", "2", "--rows", "20", "--rollouts", "2")
    assert [line[0] for line in table].count("strong") == 5 + 7
    monkeypatch.chdir(tmp_path)
    result = evaluate(flight_bundle(tmp_path), "mine", {f"row.{at}": [1, at % 2, 0] for at in range(9)})
    table = lines("--draws", "20", "--rollouts", "8", str(result.log_path))
    assert [line[1:3] for line in table] == [["9", "8+8"]] * 5
    assert [line[-2] for line in table] == ["0", "-3", "-5", "-8", "-10"]
