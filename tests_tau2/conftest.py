"""The helper modules, here and of the other tests, and the option ``--thorough``."""

import sys
from collections import Counter
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "agent")]
REPORT: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="31 000 trajectories in place of 700")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in REPORT:
        terminalreporter.write_line(line)


@pytest.fixture
def report() -> list[str]:
    """Lines that the summary ends with."""
    return REPORT


@pytest.fixture
def deviations() -> Counter[str]:
    return Counter()
