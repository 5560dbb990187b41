"""Bases, deltas and exports: small, complete, and never half there."""

import os
import shutil
import sqlite3
import zlib
from pathlib import Path
from typing import Any

import pytest

from reward_kit.agent.database import Database, vfs
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.vfs import BaseImage
from reward_kit.errors import DatabaseError

SEED = """
CREATE TABLE flights (id INTEGER PRIMARY KEY, origin TEXT, seats INTEGER, notes TEXT);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 4000)
INSERT INTO flights SELECT i, char(65 + i % 26, 65 + i % 7), i % 200, hex(randomblob(40)) FROM n;
"""
QUERY = "SELECT * FROM flights ORDER BY id"
BOOK = (
    "UPDATE flights SET seats = seats - 1 WHERE id IN (7, 3500)",
    "DELETE FROM flights WHERE id = 2000",
    "INSERT INTO flights VALUES (9000, 'SFO', 1, NULL)",
)


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("flights") / "base.db"
    Database.seed(path, SEED).close()
    return path


@pytest.fixture
def path(seeded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copyfile(seeded, tmp_path / "base.db"))


def fork_of(path: Path, *statements: str, mode: Any = "overlay") -> Database:
    fork = Database.open(path, mode=mode).fork()
    for sql in statements:
        fork.sync.execute(sql)
    return fork


@pytest.mark.parametrize("mode", ["overlay", "file"])
@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(
    "statements",
    [
        (),
        BOOK,
        ("DELETE FROM flights WHERE id > 10",),
        ("INSERT INTO flights SELECT id + 10000, origin, 1, notes FROM flights",),
    ],
    ids=["untouched", "booked", "shrunk", "grown"],
)
def test_a_state_is_found_again_as_it_was(
    path: Path, tmp_path: Path, monkeypatch: Any, statements: tuple[str, ...], in_memory: bool, mode: str
) -> None:
    if not in_memory:
        monkeypatch.setattr(vfs, "IN_MEMORY_LIMIT", 0)
    with fork_of(path, *statements, mode=mode) as fork:
        expected = fork.sync.fetch_all(QUERY)
        with Database.open(path, delta=fork.delta()) as state:
            assert state.sync.fetch_all(QUERY) == expected
            assert state.changes() == fork.changes()
            exported = sqlite3.connect(state.export(tmp_path / "roll.db"))
        assert exported.execute(QUERY).fetchall() == expected
        assert exported.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        exported.close()
        with Database.open(tmp_path / "roll.db") as again:
            assert again.equals(fork)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["base.db", "roll.db"]


def test_a_delta_inside_a_transaction_is_refused(path: Path, tmp_path: Path) -> None:
    fork = fork_of(path)
    with fork.sync.transaction():
        fork.sync.execute(BOOK[0])
        with pytest.raises(DatabaseError, match="a transaction is open"):
            fork.delta()
        with pytest.raises(DatabaseError, match="a transaction is open"):
            fork.export(tmp_path / "roll.db")


def test_damaged_truncated_and_foreign_deltas_are_refused(path: Path, tmp_path: Path) -> None:
    whole = fork_of(path, *BOOK).delta()

    def load(content: bytes, base: Path = path) -> None:
        Database.open(base, delta=content).close()

    for length in (0, 5, 20, 60, len(whole) // 2, len(whole) - 1):
        with pytest.raises(DatabaseError, match=r"base\.db: (not a delta|the delta is truncated)"):
            load(whole[:length])
    for position in range(8, len(whole), 97):
        with pytest.raises(DatabaseError):
            load(whole[:position] + bytes([whole[position] ^ 0x41]) + whole[position + 1 :])
    with pytest.raises(DatabaseError, match="truncated or damaged"):
        load(whole + b"more")
    with pytest.raises(DatabaseError, match="format version 9, this release reads version 4"):
        load(whole[:8] + b"\x09" + whole[9:])
    Database.seed(tmp_path / "other.db", SEED.replace("i % 200", "i % 201")).close()
    with pytest.raises(DatabaseError, match="belongs to another base"):
        load(whole, tmp_path / "other.db")


def test_a_delta_that_claims_to_be_tiny_but_unpacks_to_gigabytes_is_refused(path: Path) -> None:
    whole = fork_of(path, *BOOK).delta()
    header, one_page = whole[:10], bytes([1] + 7 * [0])
    rest = whole[14:46] + one_page + zlib.compress(bytes(200_000_000), 9)
    with pytest.raises(DatabaseError, match="do not fit together"):
        Database.open(path, delta=header + zlib.crc32(rest).to_bytes(4, "little") + rest)


def test_a_truncated_base_never_kills_the_process(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vfs, "IN_MEMORY_LIMIT", 0)
    base = BaseImage.open(path)
    overlay = Overlay(base)
    connection = overlay.connect()
    assert connection.execute("SELECT count(*) FROM flights WHERE id < 5").get == 4
    os.truncate(path, 3 * base.page_size)
    for sql in ("SELECT sum(length(notes)) FROM flights", "UPDATE flights SET notes = 'x'"):
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
