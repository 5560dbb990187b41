"""A process that is killed at any moment leaves whole files or none, and the base as it was."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from reward_kit.agent.database.base_image import BaseImage
from reward_kit.agent.database.overlay import Overlay

KILLS = 12
SEEDING = """
    import sys
    from reward_kit.agent.database.seeding import seed_base

    rows = "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n LIMIT 9000)"
    for number in range(100_000):
        seed_base(sys.argv[1], f"CREATE TABLE t (a); {rows} INSERT INTO t SELECT {number} FROM n")
        print(number, flush=True)
"""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")


def run_and_kill(program: str, *arguments: Path, seconds: float) -> None:
    """Start ``program``, let it finish one round, and kill it ``seconds`` later."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert (first, errors) == (b"0\n", b"")


def visible(folder: Path, suffix: str) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.suffix == suffix and not path.name.startswith(".")
    )


def test_a_killed_seeding_leaves_the_former_base_or_the_new_one(tmp_path: Path) -> None:
    moments = random.Random(8)
    path = tmp_path / "base.db"
    for _ in range(6):
        run_and_kill(SEEDING, path, seconds=moments.uniform(0, 0.1))
        rows = (
            Overlay(BaseImage.open(path))
            .connect()
            .execute("SELECT count(*), count(DISTINCT a) FROM t")
            .fetchall()
        )
        assert rows == [(9000, 1)]
        assert visible(tmp_path, ".db") == [path]
