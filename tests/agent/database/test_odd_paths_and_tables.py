"""Paths with links in them, and tables at the limits of what SQLite takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import apsw
import pytest
from flight_bundle import GOLD, flight_bundle

from reward_kit.agent import agent_eval
from reward_kit.agent.database import Database, overlay_store
from reward_kit.errors import DatabaseError


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """A folder that is reached through a link."""
    (tmp_path / "disk").mkdir()
    link = tmp_path / "link"
    link.symlink_to("disk")
    return link


def test_databases_lie_in_a_linked_folder(linked: Path, mode: str) -> None:
    seed = "CREATE TABLE t (a); INSERT INTO t VALUES (1);"
    with Database.seed(linked / "base.db", seed, mode=mode) as base, base.fork() as fork:
        fork.sync.execute("UPDATE t SET a = 2")
        fork.export(linked / "saved.db")
        assert [change.op for change in fork.sync.changes()] == ["delete", "insert"]
    with Database.open(linked / "saved.db") as saved:
        assert saved.sync.execute("SELECT a FROM t").fetchall() == [(2,)]
    with Database.open(linked / "base.db") as opened:
        assert opened.sync.execute("SELECT a FROM t").fetchall() == [(1,)]


def test_runs_may_be_a_link(tmp_path: Path, linked: Path) -> None:
    bundle = flight_bundle(tmp_path)
    bundle.rows({"actions": GOLD})
    (bundle.folder / "runs").symlink_to(linked)
    result = agent_eval(bundle.dataset, agent="gold", output_dir=str(bundle.folder / "runs"))
    assert [outcome.reward for outcome in result.outcomes] == [1.0] * 4
    assert list((tmp_path / "disk" / "evals").glob("*.json"))


def test_temporary_files_may_lie_behind_a_link(tmp_path: Path, linked: Path) -> None:
    bundle = flight_bundle(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "reward_kit.cli", "agent-eval", "-d", str(bundle.dataset), "--validate-only"],
        env={"TMPDIR": str(linked), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_sqlite_cannot_read_is_a_fault_of_the_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_big(*_: object, **__: object) -> None:
        raise apsw.TooBigError("string or blob too big")

    with Database.seed(tmp_path / "base.db", "CREATE TABLE t (a);") as base, base.fork() as fork:
        fork.sync.execute("INSERT INTO t VALUES (1)")
        fork.sync.execute("CREATE TABLE other (a)")
        monkeypatch.setattr(overlay_store, "diff_databases", too_big)
        with pytest.raises(DatabaseError, match="cannot tell what was changed: string or blob too big"):
            fork.sync.changes()
