"""A disk that has no room for the working copies of mode "file": the run ends, and no rollout pays for it."""

import sqlite3
from pathlib import Path

import pytest
from command import run_command, run_python
from flight_bundle import Bundle
from stored_rollouts import query

from reward_kit.agent.database import Database, Limits
from reward_kit.errors import DatabaseError, StorageError

ROOM = 200_000
"""Bytes that a file may have; logs and trajectories have fewer."""
TOOLS = f"""
from reward_kit.agent import ToolRegistry
from reward_kit.errors import DatabaseError

R = ToolRegistry("notes", database="file")
SQL = "INSERT INTO notes VALUES (zeroblob({2 * ROOM}))"


@R.tool(parameters={{}})
async def tells(db):
    try:
        await db.execute(SQL)
    except DatabaseError as error:
        return f"no luck: {{error}}"


@R.tool(parameters={{}})
async def by_engine(db):
    from sqlalchemy import text
    from sqlalchemy.exc import OperationalError

    try:
        async with db.engine.begin() as connection:
            await connection.execute(text(SQL))
    except OperationalError:
        return "no luck"


"""
PLAYERS = """
class Filler:
    async def respond(self, rollout):
        await rollout.call_tool(rollout.metadata["tool"], {})
        return "Done"
"""
REWARD = """
def evaluate(messages, *, db, **kwargs):
    return {"score": float(db.execute("SELECT count(*) FROM notes").scalar_one()), "reason": ""}
"""


@pytest.fixture
def bundle(bundle: Bundle) -> Bundle:
    bundle.write("tools.py", TOOLS)
    bundle.write("reward.py", REWARD)
    bundle.write("seed.sql", "CREATE TABLE notes (text);")
    return bundle


def options(bundle: Bundle) -> list[str]:
    more = f"-d {bundle.dataset} --no-sim-user --eval-id mine"
    return ["agent-eval", "--agent", bundle.player("Filler"), *more.split()]


@pytest.mark.parametrize("tool", ["tells", "by_engine"])
def test_it_ends_the_run_and_is_no_rollouts_fault(bundle: Bundle, tool: str) -> None:
    bundle.rows({"metadata": {"tool": tool}, "n_rollouts": 3})
    limited = "import resource, sys\nsys.dont_write_bytecode = True\n"
    limited += f"resource.setrlimit(resource.RLIMIT_FSIZE, ({ROOM}, {ROOM}))\n"
    limited += f"from reward_kit.cli import main\nsys.exit(main({options(bundle)!r}))"
    full = run_python(limited)
    assert full.code == 2, full.err
    assert "the working copy of a database cannot be written: File too large. Make room there" in full.err
    assert query(Path("runs/evals/mine.db"), "SELECT * FROM rollouts") == []
    again = run_command(*options(bundle))
    assert again.code == 0, again.err
    assert "3 of 3 judged rollouts passed" in again.out


async def test_a_database_that_is_full_by_its_own_limit_is_its_tools_fault(tmp_path: Path) -> None:
    limits = Limits(max_growth_bytes=1 << 16)
    seed = "CREATE TABLE notes (text);"
    with Database.seed(tmp_path / "base.db", seed, mode="file", limits=limits) as base, base.fork() as fork:
        with pytest.raises(DatabaseError, match="full"):
            await fork.execute(f"INSERT INTO notes VALUES (zeroblob({1 << 20}))")
        fork.check()


async def test_a_disk_without_so_much_room_as_a_database_may_take_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Database.seed(tmp_path / "base.db", "CREATE TABLE t (a);", mode="file") as base, base.fork() as fork:
        await fork.execute("INSERT INTO t VALUES (1)")
        full = sqlite3.OperationalError("database or disk is full")
        full.sqlite_errorcode = sqlite3.SQLITE_FULL
        usage = type("Usage", (), {"free": 1 << 20})
        monkeypatch.setattr("reward_kit.agent.database.file_access.shutil.disk_usage", lambda _: usage)
        fork.note_fault(full)
        with pytest.raises(StorageError, match="No space left on device"):
            fork.check()
