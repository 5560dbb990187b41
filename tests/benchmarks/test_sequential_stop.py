"""The benchmark of the stopping rule: its tables of simulated agents and of a stored evaluation."""

import subprocess
import sys
from pathlib import Path

from flight_bundle import flight_bundle
from planned_agent import evaluate

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sequential_stop.py"


def test_each_agent_and_difference_has_a_line(tmp_path: Path) -> None:
    plan = {f"row.{at}": [1, at % 2, 0] for at in range(9)}
    stored = evaluate(flight_bundle(tmp_path), "mine", plan, output_dir=tmp_path).log_path
    for names, agents in (
        ((), ["strong"] * 12 + ["middling"] * 12 + ["weak"] * 9),
        ([stored], [str(stored)] * 5),
    ):
        line = [sys.executable, SCRIPT, "--draws", "2", "--rows", "20", "--rollouts", "2", *names]
        done = subprocess.run(line, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert sorted(row.split()[0] for row in done.stdout.splitlines()[1:]) == sorted(agents)
