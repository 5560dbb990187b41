"""What a fork holds of SQLite's memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import sys
import apsw
kept = {before}
from reward_kit.agent.database import Database

base = Database.seed(sys.argv[1], "CREATE TABLE t (a); INSERT INTO t VALUES (1);")
forks = [base.fork() for _ in range(50)]
before = apsw.memory_used()
for fork in forks:
    fork.read_only().execute("SELECT a FROM t").all()
print((apsw.memory_used() - before) // 50, kept and kept.execute("select 1").fetchall())
"""


@pytest.mark.parametrize(
    ("before", "least", "most"), [("None", 0, 140_000), ("apsw.Connection('')", 140_001, 400_000)]
)
def test_a_connection_takes_no_lookaside_unless_sqlite_was_in_use_before(
    tmp_path: Path, before: str, least: int, most: int
) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", ASK.replace("{before}", before), str(tmp_path / "base.db")],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    each, _, rest = ran.stdout.partition(" ")
    assert least <= int(each) <= most, ran.stdout
    assert rest.strip() == ("None" if before == "None" else "[(1,)]")
