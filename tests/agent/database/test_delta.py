"""Deltas and exports: small, complete, and never half there."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import zlib
from pathlib import Path

import pytest

from reward_kit.agent.database import Database, base_image
from reward_kit.agent.database.base import seed_base
from reward_kit.agent.database.base_image import BaseImage
from reward_kit.agent.database.content import Keep
from reward_kit.agent.database.delta import export, is_delta, load_delta, save_delta
from reward_kit.agent.database.overlay import Overlay
from reward_kit.errors import DatabaseError, StorageError

SEED = """
CREATE TABLE flights (id INTEGER PRIMARY KEY, origin TEXT, seats INTEGER, notes TEXT);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 4000)
INSERT INTO flights SELECT i, char(65 + i % 26, 65 + i % 7), i % 200, hex(randomblob(40)) FROM n;
"""
QUERY = "SELECT * FROM flights ORDER BY id"


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seed_base(tmp_path_factory.mktemp("flights") / "base.db", SEED)


@pytest.fixture
def folder(seeded: Path, tmp_path: Path) -> Path:
    """``runs/row/`` with its base."""
    row = tmp_path / "runs" / "row"
    row.mkdir(parents=True)
    shutil.copyfile(seeded, row / "base.db")
    return row


def booked(base: Path) -> Overlay:
    """A fork in which two flights have changed, one is gone and one is new."""
    overlay = Overlay(BaseImage.open(base))
    connection = overlay.connect()
    connection.execute("UPDATE flights SET seats = seats - 1 WHERE id IN (7, 3500)")
    connection.execute("DELETE FROM flights WHERE id = 2000")
    connection.execute("INSERT INTO flights VALUES (9000, 'SFO', 1, NULL)")
    connection.close()
    return overlay


def rows(overlay: Overlay) -> list[tuple]:
    connection = overlay.fork().connect()
    try:
        return connection.execute(QUERY).fetchall()
    finally:
        connection.close()


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_saved_fork_is_found_again_as_it_was(folder: Path) -> None:
    overlay = booked(folder / "base.db")
    path = save_delta(overlay, folder / "roll.dbd")
    loaded = load_delta(path)
    assert loaded.base is overlay.base
    assert loaded.changed_pages() == overlay.changed_pages()
    assert rows(loaded) == rows(overlay)
    assert is_delta(path)
    assert not is_delta(folder / "base.db")
    assert names(folder) == ["base.db", "roll.dbd"]


def test_a_delta_is_a_small_fraction_of_its_base(folder: Path) -> None:
    path = save_delta(booked(folder / "base.db"), folder / "roll.dbd")
    assert path.stat().st_size < (folder / "base.db").stat().st_size / 100


def test_an_untouched_fork_can_be_saved(folder: Path) -> None:
    path = save_delta(Overlay(BaseImage.open(folder / "base.db")), folder / "roll.dbd")
    assert load_delta(path).pristine


def test_a_fork_that_has_shrunk_or_outgrown_its_base_is_saved_whole(folder: Path) -> None:
    for number, sql in enumerate(
        [
            "DELETE FROM flights WHERE id > 10",
            "INSERT INTO flights SELECT id + 10000, origin, 1, notes FROM flights",
        ]
    ):
        overlay = Overlay(BaseImage.open(folder / "base.db"))
        connection = overlay.connect()
        connection.execute(sql)
        connection.execute("VACUUM")
        path = save_delta(overlay, folder / f"roll{number}.dbd")
        loaded = load_delta(path)
        assert rows(loaded) == rows(overlay)
        exported = sqlite3.connect(export(loaded, folder / f"roll{number}.db"))
        assert exported.execute(QUERY).fetchall() == rows(overlay)
        exported.close()


@pytest.mark.parametrize("in_memory", [True, False])
def test_an_export_is_a_complete_database_for_stock_sqlite(
    folder: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    if not in_memory:
        monkeypatch.setattr(base_image, "IN_MEMORY_LIMIT", 0)
    overlay = booked(folder / "base.db")
    connection = sqlite3.connect(export(overlay, folder / "roll.db"))
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute(QUERY).fetchall() == rows(overlay)
    connection.execute("DELETE FROM flights")
    connection.commit()
    connection.close()
    assert len(rows(Overlay(BaseImage.open(folder / "base.db")))) == 4000
    assert len(rows(overlay)) == 4000


def test_saving_inside_a_transaction_is_refused(folder: Path) -> None:
    overlay = Overlay(BaseImage.open(folder / "base.db"))
    connection = overlay.connect()
    connection.execute("BEGIN; DELETE FROM flights")
    for write in (save_delta, export):
        with pytest.raises(DatabaseError, match="a transaction is open"):
            write(overlay, folder / "roll.dbd")
    assert names(folder) == ["base.db"]


def test_a_base_that_moved_into_the_shared_folder_is_found_there(folder: Path) -> None:
    path = save_delta(booked(folder / "base.db"), folder / "roll.dbd")
    expected = rows(load_delta(path))
    shared = folder.parent / ".bases"
    shared.mkdir()
    seed_base(shared / "aaa.db", "CREATE TABLE other (a)")
    (folder / "base.db").rename(shared / "bbb.db")
    assert rows(load_delta(path)) == expected


def test_a_delta_of_a_base_opened_under_another_name_is_found_beside_base_db(folder: Path) -> None:
    shared = folder.parent / ".bases"
    shared.mkdir()
    os.link(folder / "base.db", shared / "key.db")
    overlay = booked(shared / "key.db")
    path = save_delta(overlay, folder / "roll.dbd")
    expected = rows(overlay)
    shutil.rmtree(shared)
    assert rows(load_delta(path)) == expected


def test_a_missing_or_rebuilt_base_is_named(folder: Path) -> None:
    path = save_delta(booked(folder / "base.db"), folder / "roll.dbd")
    (folder / "base.db").rename(folder / "elsewhere.db")
    with pytest.raises(DatabaseError, match=r"roll\.dbd: the base of this delta, base\.db, is not beside it"):
        load_delta(path)
    moved = path.rename(path.with_name("moved.dbd"))
    shared = save_delta(booked(folder / "elsewhere.db"), folder / "roll.dbd")
    (folder / "away").mkdir()
    with pytest.raises(
        DatabaseError, match=r"the base of this delta, elsewhere\.db or base\.db, is not beside"
    ):
        load_delta(shared.rename(folder / "away" / "roll.dbd"))
    moved.rename(path)
    seed_base(folder / "base.db", SEED.replace("i % 200", "i % 201"))
    assert (folder / "base.db").stat().st_size == (folder / "elsewhere.db").stat().st_size
    with pytest.raises(DatabaseError, match=r"belongs to another state of .*base\.db"):
        load_delta(path)
    with pytest.raises(DatabaseError, match="belongs to another base"):
        load_delta(path, BaseImage.open(folder / "base.db"))
    assert len(rows(load_delta(path, BaseImage.open(folder / "elsewhere.db")))) == 4000


def test_damaged_truncated_and_foreign_files_are_refused(folder: Path) -> None:
    path = save_delta(booked(folder / "base.db"), folder / "roll.dbd")
    whole = path.read_bytes()
    for length in (0, 5, 20, 60, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DatabaseError, match=r"roll\.dbd: (not a delta|the delta is truncated)"):
            load_delta(path)
    for position in range(8, len(whole), 97):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x41]) + whole[position + 1 :])
        with pytest.raises(DatabaseError):
            load_delta(path)
    path.write_bytes(whole + b"more")
    with pytest.raises(DatabaseError, match="truncated or damaged"):
        load_delta(path)
    path.write_bytes(whole[:8] + b"\x09" + whole[9:])
    with pytest.raises(DatabaseError, match="format version 9, this release reads version 1"):
        load_delta(path)
    with pytest.raises(DatabaseError, match="not a delta"):
        load_delta(folder / "base.db")
    with pytest.raises(DatabaseError, match=r"none\.dbd: cannot open the delta: No such file"):
        load_delta(folder / "none.dbd")


def test_a_delta_that_claims_to_be_tiny_but_unpacks_to_gigabytes_is_refused(folder: Path) -> None:
    path = save_delta(booked(folder / "base.db"), folder / "roll.dbd")
    whole = path.read_bytes()
    name = b"base.db"
    bomb = zlib.compress(bytes(200_000_000), 9)
    header = bytearray(whole[: whole.index(name)])
    header[-8:] = len(bomb).to_bytes(4, "little") + zlib.crc32(name + bomb).to_bytes(4, "little")
    path.write_bytes(bytes(header) + name + bomb)
    with pytest.raises(DatabaseError, match="do not fit together"):
        load_delta(path)


def test_a_folder_that_cannot_be_written_gives_a_storage_error(folder: Path) -> None:
    overlay = booked(folder / "base.db")
    for write in (save_delta, export):
        with pytest.raises(
            StorageError, match=r"cannot write the file: No such file or directory.*No part of it was kept"
        ):
            write(overlay, folder / "missing" / "roll.dbd")


def test_a_full_disk_leaves_the_former_file_and_no_rest(folder: Path) -> None:
    overlay = booked(folder / "base.db")
    path = save_delta(overlay, folder / "roll.dbd")
    former = path.read_bytes()
    connection = overlay.connect()
    connection.execute("UPDATE flights SET notes = hex(randomblob(60))")
    connection.close()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        for write, target in ((save_delta, path), (export, folder / "roll.db")):
            with pytest.raises(StorageError, match="cannot write the file: File too large"):
                write(overlay, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.read_bytes() == former
    assert names(folder) == ["base.db", "roll.dbd"]


@pytest.mark.parametrize("keep", ["full", "delta"])
def test_an_image_holds_what_saving_writes_also_after_the_end(tmp_path: Path, keep: Keep) -> None:
    base = Database.seed(
        tmp_path / "base.db", "CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob(9000)), (2);"
    )
    fork = base.fork()
    fork.sync.execute("UPDATE t SET a = 7 WHERE a = 2")
    fork.sync.execute("INSERT INTO t VALUES (randomblob(50000))")
    saved = fork.save(tmp_path / f"saved.{keep}", keep)
    parts = fork.image(keep)
    fork.close()
    assert parts is not None
    assert b"".join(parts) == saved.read_bytes()
