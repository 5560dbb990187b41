"""A process that is killed at any moment leaves whole files or none, and the base as it was."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from reward_kit.agent.database.base import seed_base
from reward_kit.agent.database.base_image import BaseImage
from reward_kit.agent.database.delta import load_delta
from reward_kit.agent.database.overlay import Overlay

KILLS = 12
ACCOUNTS = """
CREATE TABLE accounts (id INTEGER PRIMARY KEY, amount INTEGER, note TEXT);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 1500)
INSERT INTO accounts SELECT i, 1000, hex(randomblob(100)) FROM n;
"""
TRANSFERS = """
    import sys
    from pathlib import Path
    from reward_kit.agent.database.base_image import BaseImage
    from reward_kit.agent.database.delta import export, save_delta
    from reward_kit.agent.database.overlay import Overlay

    base, folder = Path(sys.argv[1]), Path(sys.argv[2])
    for number in range(100_000):
        overlay = Overlay(BaseImage.open(base))
        connection = overlay.connect()
        for step in range(8):
            connection.execute("BEGIN")
            connection.execute("UPDATE accounts SET amount = amount - 7, note = '' WHERE id % 3 = 0")
            connection.execute("UPDATE accounts SET amount = amount + 7 WHERE id % 3 = 1")
            connection.execute("ROLLBACK" if step == 5 else "COMMIT")
        connection.close()
        save_delta(overlay, folder / f"roll_{number % 5}.dbd")
        export(overlay, folder / f"roll_{number % 5}.db")
        print(number, flush=True)
"""
SEEDING = """
    import sys
    from reward_kit.agent.database.base import seed_base

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


def test_a_killed_rollout_leaves_whole_files_and_an_intact_base(tmp_path: Path) -> None:
    moments = random.Random(7)
    base = seed_base(tmp_path / "base.db", ACCOUNTS)
    original = base.read_bytes()
    found = 0
    for _ in range(KILLS):
        run_and_kill(TRANSFERS, base, tmp_path, seconds=moments.uniform(0, 0.15))
        for path in visible(tmp_path, ".dbd"):
            check = load_delta(path).connect()
            assert check.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert check.execute("SELECT sum(amount), count(*) FROM accounts").fetchall() == [
                (1_500_000, 1500)
            ]
            found += 1
        for path in visible(tmp_path, ".db"):
            copy = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
            assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert copy.execute("SELECT sum(amount), count(*) FROM accounts").fetchall() == [
                (1_500_000, 1500)
            ]
            copy.close()
        assert base.read_bytes() == original
    assert found >= KILLS


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
