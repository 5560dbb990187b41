"""Forks of a base: private, cheap, and as reliable as a plain file."""

import os
import shutil
from pathlib import Path

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


def test_a_truncated_base_never_kills_the_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_image, "IN_MEMORY_LIMIT", 0)
    base = BaseImage.open(path)
    overlay = Overlay(base)
    connection = overlay.connect()
    assert connection.execute("SELECT count(*) FROM orders WHERE order_id < '#W0000005'").get == 4
    os.truncate(path, 3 * base.page_size)
    for sql in ("SELECT sum(length(note)) FROM orders", "UPDATE orders SET note = 'x'"):
        with pytest.raises(DatabaseError, match="truncated while in use"):
            connection.execute(sql).fetchall()
    for action in (overlay.fork, overlay.delta, lambda: overlay.export(path)):
        with pytest.raises(DatabaseError, match="changed on disk"):
            action()
    assert sorted(p.name for p in path.parent.iterdir()) == ["base.db"]


def test_files_that_are_no_finished_database_are_refused_with_the_reason(path: Path) -> None:
    def refused(file: Path, reason: str) -> None:
        with pytest.raises(DatabaseError, match=reason):
            BaseImage.open(file)

    whole, other = path.read_bytes(), path.with_name("other.db")
    refused(other, r"other\.db: cannot open the database: No such file")
    for content, reason in (
        (b"hello " * 100, "not a SQLite database"),
        (b"", "not a SQLite database"),
        (whole[:18] + b"\x02\x02" + whole[20:], r"WAL mode.*journal_mode=DELETE"),
        (whole[:-4096], "truncated"),
    ):
        other.write_bytes(content)
        refused(other, reason)
    path.with_name("base.db-journal").write_bytes(b"hot")
    refused(path, "unfinished transaction")
    refused(path.parent, "Is a directory")
