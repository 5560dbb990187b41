"""Forks of a base: private, cheap, and as reliable as a plain file."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
import threading
from datetime import datetime, timezone
from pathlib import Path

import apsw
import pytest

from reward_kit.agent.database import base_image
from reward_kit.agent.database.base import seed_base
from reward_kit.agent.database.base_image import BaseImage, seeded_with_foreign_keys
from reward_kit.agent.database.clock import frozen_clock, julian_day, set_clock
from reward_kit.agent.database.delta import export, save_delta
from reward_kit.agent.database.overlay import Overlay
from reward_kit.errors import DatabaseError

ORDERS = """
CREATE TABLE orders (order_id TEXT PRIMARY KEY, status TEXT NOT NULL, note TEXT);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 3000)
INSERT INTO orders SELECT printf('#W%07d', i), 'pending', hex(randomblob(60)) FROM n;
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seed_base(tmp_path_factory.mktemp("orders") / "base.db", ORDERS)


@pytest.fixture
def path(finished: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "base.db"
    shutil.copyfile(finished, copy)
    return copy


def rows(connection: apsw.Connection, sql: str) -> list[tuple]:
    return connection.execute(sql).fetchall()


def descriptors() -> int:
    listing = Path("/proc/self/fd")
    if not listing.exists():
        pytest.skip("this system does not list the descriptors of a process")
    return len(list(listing.iterdir()))


def test_forks_do_not_see_each_other_and_the_base_stays_as_it_is(path: Path) -> None:
    before = path.read_bytes()
    base = BaseImage.open(path)
    first, second = Overlay(base).connect(), Overlay(base).connect()
    first.execute("UPDATE orders SET status = 'cancelled'")
    second.execute("DELETE FROM orders WHERE order_id > '#W0000010'")
    assert rows(first, "SELECT DISTINCT status FROM orders") == [("cancelled",)]
    assert rows(second, "SELECT count(*), max(status) FROM orders") == [(10, "pending")]
    assert rows(Overlay(base).connect(), "SELECT count(*), max(status) FROM orders") == [(3000, "pending")]
    assert path.read_bytes() == before
    assert sorted(p.name for p in path.parent.iterdir()) == ["base.db"]


def test_a_fork_of_a_fork_starts_from_its_committed_state(path: Path) -> None:
    parent = Overlay(BaseImage.open(path))
    connection = parent.connect()
    connection.execute("UPDATE orders SET status = 'paid' WHERE order_id = '#W0000001'")
    child = parent.fork()
    connection.execute("UPDATE orders SET status = 'shipped' WHERE order_id = '#W0000001'")
    query = "SELECT status FROM orders WHERE order_id = '#W0000001'"
    assert rows(child.connect(), query) == [("paid",)]
    assert rows(connection, query) == [("shipped",)]


def test_a_fork_inside_a_transaction_is_refused(path: Path) -> None:
    overlay = Overlay(BaseImage.open(path))
    connection = overlay.connect()
    connection.execute("BEGIN; UPDATE orders SET status = 'paid'")
    with pytest.raises(DatabaseError, match="transaction"):
        overlay.fork()
    connection.execute("ROLLBACK")
    assert overlay.fork().pristine


def test_a_state_has_one_connection_at_a_time(path: Path) -> None:
    overlay = Overlay(BaseImage.open(path))
    connection = overlay.connect()
    with pytest.raises(DatabaseError, match="open connection"):
        overlay.connect()
    connection.execute("DELETE FROM orders WHERE order_id > '#W0000007'")
    connection.close()
    assert rows(overlay.connect(), "SELECT count(*) FROM orders") == [(7,)]


def test_a_thousand_forks_at_once_take_no_descriptor_and_no_thread(path: Path) -> None:
    base = BaseImage.open(path)
    gc.collect()  # what earlier tests left behind is not to be closed in between
    open_before, threads_before = descriptors(), set(threading.enumerate())
    forks = [Overlay(base) for _ in range(1000)]
    connections = [fork.connect() for fork in forks]
    for number, connection in enumerate(connections):
        connection.execute("BEGIN")
        connection.execute("UPDATE orders SET note = ? WHERE order_id <= '#W0000003'", [f"fork {number}"])
    for connection in connections[::2]:
        connection.execute("ROLLBACK")
    for connection in connections[1::2]:
        connection.execute("COMMIT")
    assert descriptors() == open_before
    assert set(threading.enumerate()) <= threads_before
    query = "SELECT DISTINCT note FROM orders WHERE order_id <= '#W0000003'"
    for number, connection in enumerate(connections):
        if number % 2:
            assert rows(connection, query) == [(f"fork {number}",)]
        else:
            assert len(rows(connection, query)) == 3
    assert [fork.pristine for fork in forks] == [True, False] * 500


def test_a_large_base_takes_one_descriptor_for_all_its_forks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_image, "IN_MEMORY_LIMIT", 0)
    gc.collect()
    open_before = descriptors()
    base = BaseImage.open(path)
    connections = [Overlay(base).connect() for _ in range(50)]
    assert {rows(connection, "SELECT count(*) FROM orders")[0] for connection in connections} == {(3000,)}
    assert descriptors() == open_before + 1
    del base, connections
    gc.collect()
    assert descriptors() == open_before


def test_a_base_is_shared_while_it_is_in_use_and_read_anew_after_it_was_replaced(path: Path) -> None:
    first = BaseImage.open(path)
    assert BaseImage.open(path) is first
    link = path.with_name("link.db")
    os.link(path, link)
    assert BaseImage.open(link) is first
    path.unlink()
    seed_base(path, "CREATE TABLE other (a)")
    assert BaseImage.open(path).fingerprint != first.fingerprint
    assert rows(Overlay(first).connect(), "SELECT count(*) FROM orders") == [(3000,)]


def test_a_rolled_back_flood_of_changes_leaves_no_pages(path: Path) -> None:
    overlay = Overlay(BaseImage.open(path))
    connection = overlay.connect()
    connection.execute("BEGIN; UPDATE orders SET note = upper(note) || 'x'")
    assert overlay.file.pages, "the page cache is smaller than the change: pages must have been spilled"
    connection.execute("ROLLBACK")
    assert not overlay.file.pages


def test_changes_that_are_undone_leave_only_the_header_page(path: Path) -> None:
    overlay = Overlay(BaseImage.open(path))
    connection = overlay.connect()
    connection.execute("UPDATE orders SET status = 'refunds' WHERE order_id = '#W0002000'")
    assert len(overlay.changed_pages()) == 2
    connection.execute("UPDATE orders SET status = 'pending' WHERE order_id = '#W0002000'")
    assert overlay.changed_pages() == [1]


def test_a_file_that_shrinks_and_grows_again_reads_zeros_not_old_content(path: Path) -> None:
    base = BaseImage.open(path)
    file = Overlay(base).file
    page = base.page_size
    file.xWrite(b"x" * page, 3 * page)
    file.xTruncate(3 * page + 10)
    file.xTruncate(5 * page)
    assert file.xRead(page, 2 * page) == base.read(2 * page, page)
    assert file.xRead(page, 3 * page) == b"x" * 10 + bytes(page - 10)
    assert file.xRead(page, 4 * page) == bytes(page)
    assert file.xRead(page, 5 * page) == b""


def test_reads_and_writes_across_page_borders_agree_with_a_plain_buffer(path: Path) -> None:
    base = BaseImage.open(path)
    file = Overlay(base).file
    plain = bytearray(base.read(0, base.size))
    for step, (offset, amount) in enumerate(
        [(10, 5), (4090, 20), (8000, 9000), (base.size - 3, 100), (4096, 4096)]
    ):
        data = bytes([step + 1]) * amount
        file.xWrite(data, offset)
        plain[offset : offset + amount] = data
    assert file.xFileSize() == len(plain)
    for offset, amount in [
        (0, 100),
        (24, 16),
        (4000, 300),
        (4096, 4096),
        (7999, 9002),
        (len(plain) - 50, 200),
    ]:
        assert file.xRead(amount, offset) == plain[offset : offset + amount]


@pytest.mark.parametrize("page_size", [512, 8192])
def test_a_fork_may_change_its_page_size(path: Path, page_size: int) -> None:
    overlay = Overlay(BaseImage.open(path))
    connection = overlay.connect()
    expected = rows(connection, "SELECT * FROM orders")
    connection.execute(f"PRAGMA page_size={page_size}; VACUUM")
    assert connection.pragma("page_size") == page_size
    connection.execute("DELETE FROM orders WHERE order_id = '#W0001234'")
    found = rows(overlay.fork().connect(), "SELECT * FROM orders")
    assert found == [row for row in expected if row[0] != "#W0001234"]
    exported = sqlite3.connect(export(overlay, path.with_name("out.db")))
    assert exported.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert exported.execute("SELECT * FROM orders").fetchall() == found
    exported.close()


def test_write_ahead_logging_cannot_be_switched_on(path: Path) -> None:
    overlay = Overlay(BaseImage.open(path))
    connection = overlay.connect()
    assert rows(connection, "PRAGMA journal_mode=WAL") == [("memory",)]
    connection.execute("UPDATE orders SET status = 'paid'")
    assert rows(overlay.fork().connect(), "SELECT DISTINCT status FROM orders") == [("paid",)]


@pytest.mark.parametrize("mode", ["delete", "truncate", "persist"])
def test_other_journals_stay_in_memory_and_are_private(path: Path, mode: str) -> None:
    base = BaseImage.open(path)
    first, second = Overlay(base).connect(), Overlay(base).connect()
    for connection in (first, second):
        assert rows(connection, f"PRAGMA journal_mode={mode}") == [(mode,)]
        connection.execute("BEGIN; UPDATE orders SET note = upper(note) || 'x'")
    first.execute("ROLLBACK")
    second.execute("COMMIT")
    assert rows(first, "SELECT count(*) FROM orders WHERE note LIKE '%x'") == [(0,)]
    assert rows(second, "SELECT count(*) FROM orders WHERE note LIKE '%x'") == [(3000,)]
    assert sorted(p.name for p in path.parent.iterdir()) == ["base.db"]


def test_the_clock_stands_still_where_it_is_frozen(path: Path) -> None:
    connection = Overlay(BaseImage.open(path)).connect()
    connection.execute(
        "CREATE TABLE log (a, at TEXT DEFAULT CURRENT_TIMESTAMP, day TEXT DEFAULT (date('now')))"
    )
    moment = datetime(2024, 5, 15, 10, 30, 59, tzinfo=timezone.utc)
    set_clock(julian_day(moment))
    try:
        assert rows(connection, "SELECT datetime('now'), CURRENT_DATE, CURRENT_TIME, unixepoch()") == [
            ("2024-05-15 10:30:59", "2024-05-15", "10:30:59", int(moment.timestamp()))
        ]
        connection.execute("INSERT INTO log (a) VALUES (1)")
    finally:
        set_clock(None)
    assert rows(connection, "SELECT * FROM log") == [(1, "2024-05-15 10:30:59", "2024-05-15")]
    now = datetime.now(timezone.utc).timestamp()
    assert abs(rows(connection, "SELECT unixepoch()")[0][0] - now) < 60


def test_the_frozen_clock_of_one_thread_is_not_that_of_another(path: Path) -> None:
    seen: list[list[tuple]] = []

    def ask() -> None:
        seen.append(rows(Overlay(BaseImage.open(path)).connect(), "SELECT date('now')"))

    with frozen_clock(julian_day(datetime(1999, 1, 2, tzinfo=timezone.utc))):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
        ask()
    assert seen[0] != seen[1] == [("1999-01-02",)]


def test_foreign_keys_are_on_in_forks_if_the_seed_switched_them_on(tmp_path: Path) -> None:
    seed = "CREATE TABLE p (a INTEGER PRIMARY KEY); CREATE TABLE c (a REFERENCES p)"
    on = seed_base(tmp_path / "on.db", f"PRAGMA foreign_keys = ON; {seed}")
    off = seed_base(tmp_path / "off.db", seed)
    assert (seeded_with_foreign_keys(on), seeded_with_foreign_keys(off)) == (True, False)
    Overlay(BaseImage.open(off)).connect().execute("INSERT INTO c VALUES (1)")
    overlay = Overlay(BaseImage.open(on))
    connection = overlay.connect()
    with pytest.raises(apsw.ConstraintError, match="FOREIGN KEY"):
        connection.execute("INSERT INTO c VALUES (1)")
    connection.execute("INSERT INTO p VALUES (1)")
    again = Overlay(BaseImage.open(export(overlay, tmp_path / "copy.db"))).connect()
    assert again.pragma("foreign_keys") == 1


def test_a_truncated_base_gives_errors_and_never_kills_the_process(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base_image, "IN_MEMORY_LIMIT", 0)
    base = BaseImage.open(path)
    overlay = Overlay(base)
    connection = overlay.connect()
    assert rows(connection, "SELECT count(*) FROM orders WHERE order_id < '#W0000005'") == [(4,)]
    os.truncate(path, 3 * base.page_size)
    for sql in ("SELECT sum(length(note)) FROM orders", "UPDATE orders SET note = 'x'"):
        with pytest.raises(DatabaseError, match="truncated while in use"):
            connection.execute(sql).fetchall()
    for action in (
        overlay.fork,
        lambda: save_delta(overlay, path.with_name("x.dbd")),
        lambda: export(overlay, path),
    ):
        with pytest.raises(DatabaseError, match="changed on disk"):
            action()
    assert sorted(p.name for p in path.parent.iterdir()) == ["base.db"]


def test_a_base_held_in_memory_does_not_care_what_happens_to_its_file(path: Path) -> None:
    overlay = Overlay(BaseImage.open(path))
    connection = overlay.connect()
    connection.execute("UPDATE orders SET status = 'paid' WHERE order_id = '#W0000001'")
    os.truncate(path, 100)
    assert rows(connection, "SELECT count(*) FROM orders") == [(3000,)]
    exported = sqlite3.connect(export(overlay.fork(), path.with_name("out.db")))
    assert exported.execute("SELECT count(*) FROM orders WHERE status = 'paid'").fetchall() == [(1,)]
    exported.close()
    with pytest.raises(DatabaseError, match="no longer there"):
        save_delta(overlay, path.with_name("x.dbd"))


def overwrite(path: Path, content: bytes, offset: int = 0) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(content)


def test_files_that_are_no_finished_database_are_refused_with_the_reason(path: Path) -> None:
    with pytest.raises(DatabaseError, match=r"none\.db: cannot open the database: No such file"):
        BaseImage.open(path.with_name("none.db"))
    other = path.with_name("other.db")
    other.write_text("hello " * 100)
    with pytest.raises(DatabaseError, match="not a SQLite database"):
        BaseImage.open(other)
    other.write_bytes(b"")
    with pytest.raises(DatabaseError, match="not a SQLite database"):
        BaseImage.open(other)
    shutil.copyfile(path, other)
    overwrite(other, b"\x02\x02", 18)
    with pytest.raises(DatabaseError, match=r"WAL mode.*journal_mode=DELETE"):
        BaseImage.open(other)
    shutil.copyfile(path, other)
    os.truncate(other, path.stat().st_size - 4096)
    with pytest.raises(DatabaseError, match="truncated"):
        BaseImage.open(other)
    path.with_name("base.db-journal").write_bytes(b"hot")
    with pytest.raises(DatabaseError, match="unfinished transaction"):
        BaseImage.open(path)
    with pytest.raises(DatabaseError, match="Is a directory"):
        BaseImage.open(path.parent)
