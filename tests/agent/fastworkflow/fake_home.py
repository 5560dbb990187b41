"""The folder that `reward-kit fastworkflow setup` would make, with a fake worker in FastWorkflow's place."""

import sys
from collections.abc import Iterable
from pathlib import Path

COMMANDS = ("search_flights", "create_booking", "pay_booking")


def make_home(folder: Path, *, version: str = "2.30.1", commands: Iterable[str] = COMMANDS) -> Path:
    """Write the folder and return it; without a ``version`` the environment lacks the package."""
    program = folder / "venv" / "bin" / "python"
    program.parent.mkdir(parents=True)
    worker = Path(__file__).with_name("fake_worker.py")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{worker}" "$@"\n')
    program.chmod(0o755)
    if version:
        packages = folder / "venv/lib/python3.12/site-packages"
        (packages / f"fastworkflow-{version}.dist-info").mkdir(parents=True)
    declared = folder / "workflows" / "airline" / "_commands"
    declared.mkdir(parents=True)
    for name in (*commands, "_context"):
        (declared / f"{name}.py").touch()
    return folder
