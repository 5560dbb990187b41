"""``reward-kit db open``: what it prints and returns when SQL is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from reward_kit.agent.database.base import seed_base


def shell(path: Path, *sql: str, script: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reward_kit", "db", "open", str(path), *sql]
    return subprocess.run(command, input=script, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return seed_base(tmp_path / "base.db", "CREATE TABLE t (x); INSERT INTO t VALUES (41);")


def test_an_error_is_printed_once(base: Path) -> None:
    done = shell(base, "SELECT * FROM nosuch")
    assert done.returncode == 1
    assert done.stderr.count("no such table: nosuch") == 1


@pytest.mark.parametrize("end", ["", ".exit\n"])
def test_a_script_with_an_error_goes_on_and_returns_1(base: Path, end: str) -> None:
    done = shell(base, script=f"SELECT * FROM nosuch;\nSELECT x + 1 FROM t;\n{end}")
    assert (done.returncode, done.stdout.strip()) == (1, "42")
    assert done.stderr.count("no such table: nosuch") == 1


def test_a_script_without_errors_returns_0(base: Path) -> None:
    assert shell(base, script="SELECT x FROM t;\n").returncode == 0
