"""``reward-kit db``: what it prints and returns when SQL, a file or a path is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reward_kit.agent.database.seeding import seed_base


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


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes with names here")
@pytest.mark.parametrize(
    "arguments", [("open", "pipe", "SELECT 1"), ("changes", "pipe"), ("export", "base.db", "pipe", "--force")]
)
def test_a_pipe_is_neither_waited_for_nor_replaced(base: Path, arguments: tuple[str, ...]) -> None:
    os.mkfifo(base.parent / "pipe")
    command = [sys.executable, "-m", "reward_kit", "db", *arguments]
    done = subprocess.run(command, cwd=base.parent, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "pipe" in done.stderr
    assert len(done.stderr.splitlines()) <= 4
    assert (base.parent / "pipe").is_fifo()
