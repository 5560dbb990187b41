"""What forks and connections hold of SQLite's memory."""

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

def taken(forks):
    before = apsw.memory_used()
    for fork in forks:
        fork.read_only().execute("SELECT a FROM t").all()
    return apsw.memory_used() - before

base = Database.seed(sys.argv[1], "CREATE TABLE t (a); INSERT INTO t VALUES (1);")
print(taken([base.fork()]), taken([base.fork() for _ in range(50)]))
print(kept and kept.execute("select 1").fetchall())
"""


def ask(path: Path, before: str) -> tuple[int, int, str]:
    """Bytes taken by the first fork and by fifty more, and what a connection made ``before`` answers."""
    line = [sys.executable, "-c", ASK.replace("{before}", before), str(path)]
    ran = subprocess.run(line, capture_output=True, text=True, check=True, timeout=60)
    first, more, *rest = ran.stdout.split(maxsplit=2)
    return int(first), int(more), "".join(rest).strip()


@pytest.mark.parametrize(
    ("before", "least", "most"), [("None", 0, 140_000), ("apsw.Connection('')", 140_001, 400_000)]
)
def test_a_connection_takes_no_lookaside_unless_sqlite_was_in_use_before(
    tmp_path: Path, before: str, least: int, most: int
) -> None:
    first, _, rest = ask(tmp_path / "base.db", before)
    assert least <= first <= most
    assert rest == ("None" if before == "None" else "[(1,)]")


def test_forks_that_run_no_statement_hold_no_memory_of_sqlites(tmp_path: Path) -> None:
    first, fifty_more, _ = ask(tmp_path / "base.db", "None")
    assert fifty_more < first / 5
