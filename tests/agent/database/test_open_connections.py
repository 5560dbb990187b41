"""A fork gets a connection for its first statement: a new one, or that of another fork."""

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import apsw
import pytest
from command import new_python

from reward_kit.agent.database import Database, overlay_store
from reward_kit.errors import DatabaseError

SHOP = """
CREATE TABLE stock (id INTEGER PRIMARY KEY, quantity INTEGER);
INSERT INTO stock VALUES (1, 10), (2, 20);
"""


def test_a_fork_without_a_statement_has_no_connection(tmp_path: Path) -> None:
    base = Database.seed(tmp_path / "base.db", SHOP)
    gc.collect()  # so that no connection of an earlier test is closed while this one counts
    before = len(apsw.connections())
    forks = [base.fork() for _ in range(30)]
    assert len(apsw.connections()) == before
    for number, fork in enumerate(forks):
        fork.sync.execute("UPDATE stock SET quantity = ? WHERE id = 2", [number])
    assert [fork.sync.fetch_val("SELECT quantity FROM stock WHERE id = 2") for fork in forks] == [*range(30)]
    assert len(apsw.connections()) == before + 30
    for fork in forks:
        fork.close()
    assert len(apsw.connections()) == before + 30
    base.close()
    assert len(apsw.connections()) == before


async def test_a_fork_that_takes_over_a_connection_finds_nothing_of_the_one_before(tmp_path: Path) -> None:
    counters = "SELECT total_changes(), changes(), last_insert_rowid()"
    with Database.seed(tmp_path / "base.db", SHOP) as base:
        before = len(apsw.connections())
        for number in range(5):
            with base.fork(seed=number) as fork:
                assert await fork.fetch_one(counters) == (0, 0, 0)
                assert await fork.fetch_all("SELECT * FROM stock") == [(1, 10), (2, 20)]
                await fork.execute("INSERT INTO stock VALUES (?, randomblob(4))", [number + 5])
                await fork.execute("UPDATE stock SET quantity = 0")
                assert await fork.fetch_one(counters) == (4, 3, number + 5)
                if number == 2:
                    with pytest.raises(DatabaseError, match="closed"), fork.sync.transaction():  # noqa: PT012 - its end
                        await fork.execute("DELETE FROM stock")
                        fork.close()
                elif number == 3:
                    await fork.execute("CREATE TEMP TABLE stock (id)")
        assert len(apsw.connections()) == before + 1


def test_forks_in_many_threads_share_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlay_store, "MOST_CONNECTIONS", 3)
    with Database.seed(tmp_path / "base.db", SHOP) as base:
        forks = [base.fork().sync for _ in range(12)]

        def work(thread: int) -> None:
            for step in range(240):
                fork = forks[(thread * 5 + step * 7) % 12]
                with fork.transaction():
                    fork.execute("UPDATE stock SET quantity = quantity + 1 WHERE id = 1")
                    fork.execute("INSERT INTO stock (quantity) SELECT changes()")
                assert len(fork.fetch_all("SELECT * FROM stock")) > 2

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, range(8)))
        for fork in forks:
            assert fork.fetch_one("SELECT sum(quantity), count(*) FROM stock") == (350, 162)
            assert fork.fetch_val("SELECT total_changes()") == 320
            assert len(fork.changes()) == 161


def test_a_query_that_ran_before_has_the_columns_that_came_since(tmp_path: Path) -> None:
    fork = Database.seed(tmp_path / "base.db", SHOP).fork().sync
    for number in range(2):
        assert f"extra{number}" not in fork.fetch_all("SELECT * FROM stock")[0]._mapping
        fork.execute(f"ALTER TABLE stock ADD COLUMN extra{number} DEFAULT {number}")
        assert fork.fetch_all("SELECT * FROM stock")[0]._mapping[f"extra{number}"] == number


def test_a_fork_that_is_open_when_python_ends_prints_nothing(tmp_path: Path) -> None:
    code = f"""
import sys
from reward_kit.agent.database import Database, overlay_store
from reward_kit.agent.database.vfs import BaseImage
from reward_kit.agent.database.overlay import Overlay
base = Database.seed(sys.argv[1], {SHOP!r})
fork, busy = base.fork(seed=1), base.fork(seed=1)
fork.sync.execute("DELETE FROM stock")
with busy.sync.transaction(): busy.sync.execute("DELETE FROM stock")
bare = Overlay(BaseImage.open(sys.argv[1])).connect(); bare.execute("BEGIN; DELETE FROM stock")
sys.exit(3)
"""
    done = new_python("-c", code, tmp_path / "base.db")
    assert (done.code, done.out, done.err) == (3, "", "")
