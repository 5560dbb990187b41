"""Paths with links in them, and tables at the limits of what SQLite takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from flight_bundle import GOLD, flight_bundle

from reward_kit.agent import agent_eval
from reward_kit.agent.database import Database


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
