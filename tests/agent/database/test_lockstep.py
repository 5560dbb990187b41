"""A random workload on a fork and on a plain SQLite file, statement by statement: there is no difference."""

import contextvars
import random
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from thorough import often

from reward_kit.agent.database import Database, overlay_store, vfs
from reward_kit.agent.database.overlay import Overlay
from reward_kit.agent.database.seeding import seed_base
from reward_kit.agent.database.vfs import BaseImage
from reward_kit.errors import DatabaseError

STATEMENTS = often(1000, 300)
SEED = """
CREATE TABLE users (user_id TEXT PRIMARY KEY, email TEXT UNIQUE, zip INTEGER);
CREATE TABLE orders (order_id TEXT PRIMARY KEY, user_id TEXT, status TEXT, address TEXT);
CREATE INDEX orders_by_user ON orders (user_id);
CREATE TABLE items (id INTEGER PRIMARY KEY, order_id TEXT, content BLOB);
CREATE INDEX items_by_order ON items (order_id);
CREATE TABLE payments (id INTEGER PRIMARY KEY AUTOINCREMENT, order_id TEXT, kind TEXT, amount REAL);
CREATE TABLE stock (item TEXT, place INTEGER, amount INTEGER, PRIMARY KEY (item, place)) WITHOUT ROWID;
CREATE TABLE notes (a, b);
CREATE TRIGGER paid AFTER INSERT ON payments WHEN NEW.kind = 'final' BEGIN
  UPDATE orders SET status = 'paid; really' WHERE order_id = NEW.order_id;
  INSERT INTO notes VALUES (NEW.order_id, NEW.amount);
END;
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 400)
INSERT INTO users SELECT 'u' || i, i || '@x.org', i * 7 % 100 FROM n;
WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n LIMIT 1200)
INSERT INTO orders SELECT 'o' || i, 'u' || (i % 400), 'pending', hex(randomblob(20)) FROM n;
INSERT INTO items (order_id, content) SELECT order_id, randomblob(30) FROM orders, (VALUES (1), (2), (3));
INSERT INTO payments (order_id, kind, amount) SELECT order_id, 'first', length(address) / 3.0 FROM orders;
INSERT INTO stock SELECT 'i' || i.id, i.id % 3, i.id FROM items i WHERE i.id <= 500;
INSERT INTO notes SELECT zip, user_id FROM users WHERE zip < 30;
"""

Statement = tuple[str, tuple[Any, ...]]


class Workload:
    """Random statements, which follow the nesting of transactions and savepoints."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.in_transaction = False
        self.savepoints = 0
        self.tables = 0

    def statements(self, amount: int) -> Iterator[Statement]:
        kinds = [self.change] * 10 + [self.bulk_change] * 3 + [self.schema_change] * 2 + [self.query] * 6
        for _ in range(amount):
            control = self.control()
            yield (control, ()) if control else self.random.choice(kinds)()
        if self.in_transaction:
            yield "COMMIT", ()
        yield "PRAGMA integrity_check", ()

    def control(self) -> str | None:
        draw = self.random.random()
        if not self.in_transaction:
            if draw < 0.02:
                return "VACUUM"
            if draw < 0.25:
                self.in_transaction = True
                return "BEGIN"
            return None
        if draw < 0.06 or 0.06 <= draw < 0.14:
            self.in_transaction, self.savepoints = False, 0
            return "ROLLBACK" if draw < 0.06 else "COMMIT"
        if draw < 0.20:
            self.savepoints += 1
            return f"SAVEPOINT s{self.savepoints}"
        if self.savepoints and draw < 0.26:
            return f"ROLLBACK TO s{self.savepoints}"
        if self.savepoints and draw < 0.29:
            self.savepoints -= 1
            return f"RELEASE s{self.savepoints + 1}"
        return None

    def order(self) -> str:
        return f"o{self.random.randrange(1300)}"

    def change(self) -> Statement:
        r = self.random
        number, text, order = r.randrange(2000), r.choice("abcdef") * r.randint(1, 400), self.order()
        user, content = (f"u{number % 500}", f"{number % 450}@x.org"), bytes(r.choice([9, 5000, 60_000]))
        note, item = r.choice([1, 1.5, None, "x", b"\0x"]), f"i{number % 600}"
        counted = "INSERT INTO stock VALUES (?, 1, 1) ON CONFLICT DO UPDATE SET amount = amount + 1"
        choices: list[Statement] = [
            ("UPDATE orders SET status = ?, address = ? WHERE order_id = ?", (text, str(number), order)),
            ("INSERT INTO payments (order_id, kind, amount) VALUES (?, ?, ?)", (order, text, number / 7)),
            ("INSERT INTO payments (order_id, kind, amount) VALUES (?, 'final', 1)", (order,)),
            ("DELETE FROM items WHERE order_id = ?", (order,)),
            ("INSERT INTO items (order_id, content) VALUES (?, ?)", (order, content)),
            ("INSERT OR REPLACE INTO users VALUES (?, ?, ?)", (*user, number)),
            ("INSERT INTO users VALUES (?, ?, 1)", user),
            (counted, (item,)),
            ("INSERT INTO notes VALUES (?, ?)", (note, number % 5)),
            ("UPDATE notes SET b = b + 1 WHERE a = ?", (number % 30,)),
            ("DELETE FROM stock WHERE item = ? RETURNING *", (item,)),
        ]
        return r.choice(choices)

    def bulk_change(self) -> Statement:
        r = self.random
        modulus = r.randint(5, 60)
        choices: list[Statement] = [
            ("DELETE FROM payments WHERE id % ? = ?", (modulus, r.randrange(modulus))),
            ("UPDATE users SET zip = zip + 1 WHERE user_id < ?", (f"u{r.randrange(400)}",)),
            ("UPDATE orders SET address = address || ? WHERE length(address) < 300", ("y" * modulus,)),
            ("INSERT INTO items (order_id, content) SELECT order_id, zeroblob(?) FROM orders", (modulus,)),
            ("DELETE FROM items WHERE id > ?", (r.randrange(2500, 9000),)),
        ]
        return r.choice(choices)

    def schema_change(self) -> Statement:
        r = self.random
        self.tables += 1
        choices = [
            f"CREATE TABLE t{self.tables} (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c)",
            f"CREATE TABLE t{self.tables} AS SELECT * FROM orders LIMIT 700",
            f"DROP TABLE IF EXISTS t{r.randint(1, self.tables)}",
            f"ALTER TABLE t{r.randint(1, self.tables)} ADD COLUMN d DEFAULT 7",
            f"CREATE INDEX IF NOT EXISTS x{r.randint(0, 5)} ON orders (status, address)",
            f"DROP INDEX IF EXISTS x{r.randint(0, 5)}",
        ]
        return r.choice(choices), ()

    def query(self) -> Statement:
        order, joined = self.order(), "SELECT status, count(*) FROM users JOIN orders USING (user_id)"
        choices: list[Statement] = [
            ("SELECT * FROM orders WHERE order_id = ?", (order,)),
            ("SELECT count(*), sum(length(content)) FROM items WHERE order_id < ?", (order,)),
            ("SELECT id, kind, amount FROM payments WHERE order_id = ? ORDER BY id", (order,)),
            (f"{joined} WHERE zip < ? GROUP BY 1", (self.random.randrange(100),)),
            ("SELECT * FROM sqlite_sequence", ()),
        ]
        return self.random.choice(choices)


def outcome(connection: apsw.Connection, statement: Statement) -> object:
    """Rows, or the kind and text of the error."""
    try:
        return connection.execute(*statement).fetchall()
    except apsw.Error as error:
        return type(error).__name__, str(error)


def content(execute: Any) -> list[object]:
    """Schema and all rows."""
    schema = [tuple(row) for row in execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name")]
    tables = [name for kind, name, _ in schema if kind == "table"]
    return [schema, *(sorted(map(repr, map(tuple, execute(f'SELECT * FROM "{name}"')))) for name in tables)]


@pytest.fixture(scope="module")
def base_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return seed_base(tmp_path_factory.mktemp("lockstep") / "base.db", SEED)


# with a cache of 16 pages SQLite writes pages in the middle of transactions and takes them back on rollback
@pytest.mark.parametrize(
    ("seed", "cache_pages", "in_memory"), [(1, None, True), (2, 16, True), (5, 16, False), (6, 64, True)]
)
def test_a_fork_behaves_like_a_plain_file(
    base_path: Path, tmp_path: Path, monkeypatch: Any, seed: int, cache_pages: int | None, in_memory: bool
) -> None:
    if not in_memory:
        monkeypatch.setattr(vfs, "IN_MEMORY_LIMIT", 0)
    base_path = Path(shutil.copy(base_path, tmp_path / "base.db"))
    original = base_path.read_bytes()
    plain_path = tmp_path / "plain.db"
    plain_path.write_bytes(original)
    plain = apsw.Connection(str(plain_path))
    plain.execute("PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF").fetchall()
    overlay = Overlay(BaseImage.open(base_path))
    connection = overlay.connect()
    if cache_pages:
        connection.pragma("cache_size", cache_pages)

    for number, statement in enumerate(Workload(seed).statements(STATEMENTS)):
        assert outcome(connection, statement) == outcome(plain, statement), (number, statement)

    expected = content(plain.execute)
    assert content(connection.execute) == expected
    assert content(overlay.fork().connect().execute) == expected
    delta = overlay.delta()
    assert content(Overlay.from_delta(delta, overlay.base).connect().execute) == expected
    stock = sqlite3.connect(Overlay.from_delta(delta, overlay.base).export(tmp_path / "roll.db"))
    assert stock.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert content(stock.execute) == expected
    stock.close()
    assert base_path.read_bytes() == original


INDEXED = """
CREATE VIRTUAL TABLE texts USING fts5 (body);
INSERT INTO texts SELECT address FROM orders;
CREATE VIRTUAL TABLE boxes USING rtree (id, low, high);
INSERT INTO boxes SELECT zip, zip, zip + 5 FROM users GROUP BY zip;
CREATE TABLE noted (before, total);
CREATE TRIGGER counting AFTER INSERT ON noted BEGIN
  UPDATE stock SET amount = amount + changes() WHERE place = 2;
  UPDATE noted SET before = changes();
END;
"""


class SharedWorkload(Workload):
    """Statements on the rows that all forks have in common, in transactions now and then."""

    def step(self) -> Statement:
        draw = self.random.random()
        if draw < 0.2:
            self.in_transaction = not self.in_transaction
            return ("BEGIN" if self.in_transaction else self.random.choice(["COMMIT", "ROLLBACK"])), ()
        return self.random.choice([self.change] * 6 + [self.bulk_change, self.indexed] + [self.query] * 5)()

    def indexed(self) -> Statement:
        number = self.random.randrange(120)
        choices: list[Statement] = [
            ("INSERT INTO texts VALUES (?)", (f"word{number} common",)),
            ("DELETE FROM texts WHERE rowid = ?", (number,)),
            ("SELECT rowid, body FROM texts WHERE texts MATCH ?", (f"word{number} OR common",)),
            ("INSERT OR REPLACE INTO boxes VALUES (?, ?, ?)", (number, number, number + 9)),
            ("SELECT id FROM boxes WHERE high > ? ORDER BY id", (number - 50,)),
            ("INSERT INTO noted VALUES (0, total_changes())", ()),
        ]
        return self.random.choice(choices)


class Pair:
    """A fork and a plain file, which get the same statements."""

    def __init__(self, fork: Database, path: Path, seed: int) -> None:
        self.fork, self.workload = fork, SharedWorkload(seed)
        self.context = contextvars.copy_context()
        self.plain = apsw.Connection(str(shutil.copy(fork.base_path, path)))
        self.plain.execute("PRAGMA journal_mode=MEMORY; PRAGMA synchronous=OFF").fetchall()
        self.scope: Any = None

    def step(self, *statement: Any) -> None:
        statement = statement or self.workload.step()
        expected = outcome(self.plain, statement)
        found = self.context.run(self.answer, *statement)
        if expected and isinstance(expected, tuple):  # an error
            expected = expected[0]
        assert found == expected, statement
        counters = "SELECT changes(), total_changes(), last_insert_rowid()"
        assert self.context.run(self.answer, counters) == outcome(self.plain, (counters,))

    def answer(self, sql: str, parameters: Any = ()) -> object:
        if sql == "BEGIN":
            self.scope = self.fork.sync.transaction()
            return list(self.scope.__enter__() and ())
        if sql in ("COMMIT", "ROLLBACK"):
            return list(self.scope.__exit__(ValueError if sql == "ROLLBACK" else None, None, None) or ())
        try:
            return [tuple(row) for row in self.fork.sync.fetch_all(sql, parameters)]
        except DatabaseError as error:
            return type(error.__cause__).__name__


@pytest.mark.parametrize(("most", "forks"), [(1, 5), (3, 8)])
def test_forks_that_share_connections_behave_like_plain_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, forks: int
) -> None:
    monkeypatch.setattr(overlay_store, "MOST_CONNECTIONS", most)
    before = len(apsw.connections())
    with Database.seed(tmp_path / "base.db", SEED + INDEXED) as base:
        pairs = [Pair(base.fork(), tmp_path / f"{number}.db", number) for number in range(forks)]
        turns = random.Random(most)
        for _ in range(often(1500, 400)):
            turns.choice(pairs).step()
        for pair in pairs:
            if pair.workload.in_transaction:
                pair.step("COMMIT")
            # this alone makes FTS5 read its structure anew, as each statement does but integrity_check
            pair.step("SELECT count(*) FROM texts WHERE texts MATCH ?", ("common",))
            pair.step("PRAGMA integrity_check")
            assert content(pair.plain.execute) == content(pair.fork.sync.fetch_all)
            pair.plain.close()
        # each is moved to another state, which may have grown or shrunk, by another fork's statements
        assert len(apsw.connections()) <= before + forks
        for pair in pairs:
            with Database.open(base.base_path, delta=pair.fork.delta()) as stored:
                assert stored.changes() == pair.fork.changes()
            pair.fork.close()
        assert len(apsw.connections()) <= before + most
