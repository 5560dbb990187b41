"""The benchmark of growth: each command runs at each size, and its table gives a line to each."""

from pathlib import Path

from command import new_python
from thorough import THOROUGH

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "growth.py"
SIZES = ["2", "6"] if THOROUGH else ["2"]


def test_each_size_has_its_lines() -> None:
    done = new_python(SCRIPT, "--sizes", *SIZES, "--rows-of", "2", timeout=300)
    assert done.code == 0, done.err
    first, *others = done.out.split("\n\n")
    assert [row.split()[0] for row in first.splitlines()] == ["rollouts", *SIZES]
    assert len(others) == 2
    for table in others:
        assert [row.split()[0] for row in table.splitlines()[1:]] == ["rollouts", *SIZES]
