"""Forks of a base: private, cheap, and as reliable as a plain file."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import apsw
import pytest

from reward_kit.agent.database import base_image
from reward_kit.agent.database.base_image import BaseImage
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.seeding import seed_base
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
        overlay.delta,
        lambda: overlay.export(path),
    ):
        with pytest.raises(DatabaseError, match="changed on disk"):
            action()
    assert sorted(p.name for p in path.parent.iterdir()) == ["base.db"]


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
