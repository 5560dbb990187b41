"""Seeds: SQL text and scripts become finished bases, and faults are told with their place."""

import resource
import signal
import sqlite3
import stat
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from stored_rollouts import query

from reward_kit.agent.database import Database
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.seeding import seed_base, split_statements
from reward_kit.agent.database.vfs import BaseImage
from reward_kit.errors import BundleError, StorageError, UsageError


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in query(path, sql)]


def fault(tmp_path: Path, sql: str) -> str:
    """The message for a faulty seed, which leaves nothing behind."""
    with pytest.raises(BundleError) as caught:
        seed_base(tmp_path / "base.db", sql, origin="flight_task/seed.sql")
    assert list(tmp_path.iterdir()) == []
    return str(caught.value)


def test_statements_keep_their_line_numbers() -> None:
    script = (
        "-- flights; all of them\nCREATE TABLE a (b);\n\n"
        "/* two\nlines; */ INSERT INTO a\nVALUES ('x;y');;SELECT 1; SELECT 2"
    )
    assert [(s.line, s.sql) for s in split_statements(script)] == [
        (2, "CREATE TABLE a (b);"),
        (5, "INSERT INTO a\nVALUES ('x;y');"),
        (6, "SELECT 1;"),
        (6, "SELECT 2"),
    ]


def test_a_seeded_base_is_finished_and_read_only(tmp_path: Path) -> None:
    path = seed_base(
        tmp_path / "base.db",
        "PRAGMA journal_mode = WAL; CREATE TABLE t (a); INSERT INTO t SELECT zeroblob(9000); DELETE FROM t;"
        "INSERT INTO t(rowid, a) VALUES (101, 1);",
    )
    assert [file.name for file in tmp_path.iterdir()] == ["base.db"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert rows(path, "PRAGMA journal_mode") == [("delete",)]
    assert rows(path, "SELECT rowid, a FROM t") == [(101, 1)]
    assert rows(path, "SELECT name FROM sqlite_master") == [("t",)]
    assert Overlay(BaseImage.open(path)).pristine


def test_foreign_keys_are_not_switched_within_a_transaction(tmp_path: Path) -> None:
    said = fault(tmp_path, "BEGIN;\nPRAGMA foreign_keys = ON;\nCOMMIT;")
    assert said.startswith("flight_task/seed.sql:2: PRAGMA foreign_keys, which has no effect between BEGIN")


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    sql = """
    CREATE TABLE t (a DEFAULT (random()), b DEFAULT (hex(randomblob(8))), c DEFAULT CURRENT_TIMESTAMP, d);
    INSERT INTO t (d) VALUES (date('now', '+1 day')), (abs(random()) % 100), (randomblob(4));
    """
    now = datetime(2024, 5, 15, 12, tzinfo=UTC)
    first = seed_base(tmp_path / "a.db", sql, now=now)
    second = seed_base(tmp_path / "b.db", sql, now="2024-05-15T12:00:00Z")
    assert first.read_bytes() == second.read_bytes()
    values = rows(first, "SELECT * FROM t")
    assert [row[2] for row in values] == ["2024-05-15 12:00:00"] * 3
    assert values[0][3] == "2024-05-16"
    assert len({row[0] for row in values} | {row[1] for row in values}) == 6


def test_a_faulty_statement_is_told_with_file_line_and_text(tmp_path: Path) -> None:
    assert fault(tmp_path, "CREATE TABLE t (a);\n\nINSERT INTO t\nVALUES (1, 2);") == (
        "flight_task/seed.sql:3: table t has 1 columns but 2 values were supplied,"
        " in: INSERT INTO t VALUES (1, 2);"
    )
    insert = "INSERT INTO t VALUES (1);"
    told = fault(tmp_path, f"CREATE TABLE t (a UNIQUE);\n{insert}\n-- again\n{insert}")
    assert told == f"flight_task/seed.sql:4: UNIQUE constraint failed: t.a, in: {insert}"


def test_a_transaction_that_is_never_ended_is_a_fault(tmp_path: Path) -> None:
    assert fault(tmp_path, "BEGIN; CREATE TABLE t (a);") == (
        "flight_task/seed.sql: a transaction is begun and never ended. Add COMMIT."
    )


def test_foreign_keys_switched_on_late_are_checked(tmp_path: Path) -> None:
    message = fault(
        tmp_path,
        "CREATE TABLE p (a INTEGER PRIMARY KEY); CREATE TABLE c (b REFERENCES p);"
        "INSERT INTO c VALUES (4), (5);"
        "PRAGMA foreign_keys = ON;",
    )
    assert message == "flight_task/seed.sql: c.b 4 is in no row of p (and 1 more)"


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot write the base in .*: .*No part of it was kept"):
            seed_base(tmp_path / "base.db", "CREATE TABLE t (a); INSERT INTO t VALUES (zeroblob(90000000));")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert list(tmp_path.iterdir()) == []


def test_a_script_holds_a_connection_like_that_of_a_tool(tmp_path: Path) -> None:
    seen: list[Any] = []

    def script(db: Any) -> None:
        db.executescript("CREATE TABLE t (a INTEGER PRIMARY KEY, b); CREATE TABLE u (c);")
        seen.append(db.execute("INSERT INTO t (b) VALUES (:b)", {"b": "x"}).rowcount)
        seen.append(db.executemany("INSERT INTO t (b) VALUES (?)", [["y"], ["z"]]))
        seen.append(db.execute("SELECT count(*) FROM t").scalar_one())
        seen.append(db.execute("SELECT a, b FROM t WHERE a > ?", [1]).mappings().all())
        seen.append((db.fetch_val("SELECT b FROM t"), db.fetch_one("SELECT 1 WHERE 0")))
        seen.append(db.fetch_all("SELECT a FROM t"))
        db.commit()

    path = seed_base(tmp_path / "base.db", "CREATE TABLE s (a)", script=script)
    assert seen == [1, 2, 3, [{"a": 2, "b": "y"}, {"a": 3, "b": "z"}], ("x", None), [(1,), (2,), (3,)]]
    assert rows(path, "SELECT name FROM sqlite_master ORDER BY name") == [("s",), ("t",), ("u",)]


def test_a_script_is_refused_what_seed_sql_is_refused_and_told_what_cannot_be_stored(tmp_path: Path) -> None:
    for call, words in (
        (lambda db: db.execute("ATTACH 'x' AS y"), "reaching another file"),
        (lambda db: db.execute("SELECT ?", [object()]), "a object, which SQLite cannot store"),
    ):
        with pytest.raises(BundleError, match=words):
            seed_base(tmp_path / "base.db", script=call)


def test_what_is_no_seed_is_an_error_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"sql= takes text, not a \w+Path\. .*path\.read_text\(\)"):
        Database.seed(tmp_path / "base.db", Path("seed.sql"))  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(UsageError, match="script= takes a plain function"):
        Database.seed(tmp_path / "base.db", script="seed.py")  # type: ignore[arg-type]  # wrong on purpose
    assert list(tmp_path.iterdir()) == []


DUMP = """PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT);
INSERT INTO items VALUES(1,'lamp');
PRAGMA writable_schema=ON;
INSERT INTO sqlite_schema(type,name,tbl_name,rootpage,sql)VALUES('table','search','search',0,'CREATE VIRTUAL TABLE search USING fts5(name)');
CREATE TABLE IF NOT EXISTS 'search_data'(id INTEGER PRIMARY KEY, block BLOB);
INSERT INTO search_data VALUES(1,X'0104');
INSERT INTO search_data VALUES(10,X'000000000101010001010101');
INSERT INTO search_data VALUES(137438953473,X'000000200230610102040102697401020201046c616d7001020501017301020304060709');
CREATE TABLE IF NOT EXISTS 'search_idx'(segid, term, pgno, PRIMARY KEY(segid, term)) WITHOUT ROWID;
INSERT INTO search_idx VALUES(1,X'',2);
CREATE TABLE IF NOT EXISTS 'search_content'(id INTEGER PRIMARY KEY, c0);
INSERT INTO search_content VALUES(1,'it''s a lamp');
CREATE TABLE IF NOT EXISTS 'search_docsize'(id INTEGER PRIMARY KEY, sz BLOB);
INSERT INTO search_docsize VALUES(1,X'04');
CREATE TABLE IF NOT EXISTS 'search_config'(k PRIMARY KEY, v) WITHOUT ROWID;
INSERT INTO search_config VALUES('version',4);
PRAGMA writable_schema=OFF;
COMMIT;
"""  # noqa: E501 - lines as sqlite3 writes them
FOUND = "SELECT rowid, name FROM search WHERE search MATCH 'lamp'"


def test_a_dump_of_sqlite3_with_a_full_text_table_loads(tmp_path: Path) -> None:
    with Database.seed(tmp_path / "base.db", f"{DUMP}INSERT INTO search VALUES ('old lamp');") as base:
        for name in ("a lamp", "desk"):
            with base.fork() as fork:
                fork.sync.execute("INSERT INTO search VALUES (?)", [name])
                found = [tuple(row) for row in fork.sync.fetch_all(FOUND)]
                assert found == [(1, "it's a lamp"), (2, "old lamp"), (3, "a lamp")][: 3 - (name == "desk")]
                assert fork.changes().lines() == [f"search_content #3: inserted (id=3, c0='{name}')"]


def test_a_dump_that_would_break_a_virtual_table_is_refused_with_a_remedy(tmp_path: Path) -> None:
    message = fault(tmp_path, DUMP.replace("X'0104'", "X'01'").replace("746c616d70", "7478787878"))
    assert "the dump's virtual tables are damaged: " in message
    assert "Keep CREATE VIRTUAL TABLE" in message
    message = fault(tmp_path, "PRAGMA writable_schema=ON; UPDATE sqlite_schema SET sql = '';")
    assert "may not be modified" in message


def test_a_dump_of_python_loads_line_by_line(tmp_path: Path) -> None:
    with closing(sqlite3.connect(":memory:")) as source:
        source.executescript(
            "CREATE VIRTUAL TABLE search USING fts5(name); "
            "INSERT INTO search (rowid, name) VALUES (7, 'lamp');"
            'CREATE VIRTUAL TABLE "old one" USING fts4(x); INSERT INTO "old one" VALUES (\'chair\');'
            "CREATE VIRTUAL TABLE boxes USING rtree(id, low, high); INSERT INTO boxes VALUES (1, 2, 3);"
            "CREATE VIRTUAL TABLE search_old USING fts5(name); INSERT INTO search_old VALUES ('lamp');"
            "CREATE TABLE items (id INTEGER PRIMARY KEY AUTOINCREMENT); INSERT INTO items VALUES (5);"
        )

        def seed(db: Any) -> None:
            for line in source.iterdump():
                db.execute(line)

        with Database.seed(tmp_path / "base.db", script=seed) as base:
            for sql, expected in (
                (FOUND, (7, "lamp")),
                (FOUND.replace("search", "search_old"), (1, "lamp")),
                ("SELECT rowid, x FROM \"old one\" WHERE x MATCH 'chair'", (1, "chair")),
                ("SELECT * FROM boxes WHERE low < 3 AND high > 2", (1, 2.0, 3.0)),
                ("SELECT * FROM sqlite_sequence", ("items", 5)),
                ("PRAGMA integrity_check", ("ok",)),
            ):
                assert [tuple(row) for row in base.sync.fetch_all(sql)] == [expected]


@pytest.mark.parametrize(
    ("head", "statement", "remedy"),
    [
        ("--\n-- PostgreSQL database dump\n--\n", "SET lock_timeout = 0;", "a dump of PostgreSQL: "),
        ("-- MySQL dump 10.13\n", "LOCK TABLES `t` WRITE;", "of mysqldump --no-create-info"),
        (
            "/*M!999999*/\n-- MariaDB dump 10.19\n",
            "CREATE TABLE t (a int NOT NULL AUTO_INCREMENT);",
            "of MariaDB: ",
        ),
        ("", ".read x.sql", "commands of the program sqlite3"),
    ],
)
def test_a_dump_of_another_database_is_named_with_a_remedy(
    tmp_path: Path, head: str, statement: str, remedy: str
) -> None:
    message = fault(tmp_path, head + statement)
    assert message.startswith(f"flight_task/seed.sql:{head.count(chr(10)) + 1}: ")
    assert remedy in message
