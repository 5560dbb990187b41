"""A database with tables of every kind, and statements that meet, undo each other and fail on it."""

from typing import Any

from hypothesis import strategies as st

SEED = """
CREATE TABLE plain (id INTEGER PRIMARY KEY, v, w REAL);
CREATE TABLE named (k TEXT PRIMARY KEY, v);
CREATE TABLE pairs (a, b, v, UNIQUE (v), PRIMARY KEY (a, b));
CREATE TABLE links (a TEXT, b TEXT, v INTEGER, PRIMARY KEY (a, b));
CREATE TABLE compact (k TEXT, j INT, v, PRIMARY KEY (k, j)) WITHOUT ROWID;
CREATE TABLE keyless (x, y);
CREATE TABLE untyped (k PRIMARY KEY, v);
CREATE TABLE blobs (k BLOB, j TEXT, v, PRIMARY KEY (k, j)) WITHOUT ROWID;
CREATE TABLE folded (k TEXT PRIMARY KEY COLLATE NOCASE, v);
CREATE TABLE derived (id INTEGER PRIMARY KEY, a, twice AS (a * 2) STORED, b, text AS (a || b));
CREATE TABLE masked (rowid TEXT, oid, v);
CREATE TABLE hidden (_rowid_ TEXT, v);
CREATE TABLE counted (id INTEGER PRIMARY KEY AUTOINCREMENT, v);
CREATE VIRTUAL TABLE texts USING fts5 (title, body);
CREATE VIRTUAL TABLE boxes USING rtree (id, low, high);
CREATE TABLE docs (id INTEGER PRIMARY KEY, body);
CREATE VIRTUAL TABLE search USING fts5 (body, content = 'docs', content_rowid = 'id');
CREATE TRIGGER docs_in AFTER INSERT ON docs BEGIN
  INSERT INTO search (rowid, body) VALUES (NEW.id, NEW.body);
END;
INSERT INTO plain VALUES (1, 0, 0.5), (2, 0.0, 1.0), (3, 'x', -1);
INSERT INTO named VALUES ('a', 1), ('b', 2), (NULL, 1), (NULL, 1), (NULL, 2);
INSERT INTO pairs VALUES (1, 1, 1), (1, NULL, 2), (NULL, 2, 3), (2, 2, 4);
INSERT INTO links VALUES ('a', 'a', 1), ('a', 'b', 2);
INSERT INTO compact VALUES ('a', 1, 1), ('a', 2, 2), ('b', 1, 0.0);
INSERT INTO keyless VALUES (1, 1), (1, 1), (2, 0.0), (NULL, 'x');
INSERT INTO untyped VALUES (1, 1), (2.0, 2), (0.0, 3), ('1', 4);
INSERT INTO blobs VALUES (1, 'a', 1), (1.5, 'a', 2), (x'01', 'b', 3);
INSERT INTO folded VALUES ('a', 1), ('B', 2);
INSERT INTO derived (id, a, b) VALUES (1, 1, 1), (2, 2, 2);
INSERT INTO masked VALUES ('r', 1, 1), ('s', 2, 2);
INSERT INTO hidden VALUES ('r', 1), ('s', 2);
INSERT INTO counted (v) VALUES (1), (2);
INSERT INTO texts VALUES ('one', 'first text'), ('two', 'second text');
INSERT INTO boxes VALUES (1, 0, 1), (2, 1, 2);
INSERT INTO docs VALUES (1, 'hello'), (2, 'world');
"""

# few values and few rows: statements have to meet, to undo each other and to lead to the same place often
values = st.sampled_from([0, 1, 2, 1.0, 0.0, -0.0, None, "x", "1", "", b"x", b"", 2**40, "a\0b"])
numbers = st.integers(1, 3)
keys = st.sampled_from(["a", "A", "b", None])
numeric_keys = st.sampled_from([0, 0.0, -0.0, 1, 1.0, 2, 2.0, "1"])

some = st.sampled_from([1, 2, None])
Choice = tuple[str, tuple[st.SearchStrategy[Any], ...]]
statements: list[Choice] = [
    ("UPDATE plain SET v = ? WHERE id = ?", (values, numbers)),
    ("UPDATE plain SET w = ? WHERE id = ?", (values, numbers)),
    ("UPDATE plain SET id = id + 10 WHERE id = ?", (numbers,)),
    ("UPDATE plain SET id = id - 10 WHERE id > 10", ()),
    ("DELETE FROM plain WHERE id = ?", (numbers,)),
    ("INSERT OR REPLACE INTO plain VALUES (?, ?, 0.5)", (numbers, values)),
    ("INSERT INTO plain (v) VALUES (?)", (values,)),
    ("INSERT OR IGNORE INTO named VALUES (?, ?)", (keys, numbers)),
    ("UPDATE named SET v = ? WHERE k IS ?", (numbers, keys)),
    ("UPDATE OR IGNORE named SET k = ? WHERE v = ?", (keys, numbers)),
    ("DELETE FROM named WHERE k IS ?", (keys,)),
    ("INSERT OR REPLACE INTO pairs VALUES (?, ?, ?)", (some, some, st.integers(1, 5))),
    ("UPDATE OR REPLACE pairs SET b = ? WHERE v = ?", (st.sampled_from([1, None]), numbers)),
    ("UPDATE OR IGNORE pairs SET v = ? WHERE a IS NULL", (st.integers(1, 5),)),
    ("DELETE FROM pairs WHERE v = ?", (st.integers(1, 5),)),
    ("INSERT OR IGNORE INTO links VALUES (?, ?, ?)", (keys, keys, numbers)),
    ("UPDATE OR IGNORE links SET b = ? WHERE v = ?", (keys, numbers)),
    ("DELETE FROM links WHERE v = ?", (numbers,)),
    ("INSERT OR REPLACE INTO compact VALUES (?, ?, ?)", (st.sampled_from(["a", "b"]), numbers, values)),
    ("DELETE FROM compact WHERE j = ?", (numbers,)),
    ("UPDATE OR IGNORE compact SET j = j + 1 WHERE k = 'a'", ()),
    ("INSERT INTO keyless VALUES (?, ?)", (numbers, values)),
    ("UPDATE keyless SET y = ? WHERE x = ?", (values, numbers)),
    ("DELETE FROM keyless WHERE rowid IN (SELECT max(rowid) FROM keyless WHERE x = ?)", (numbers,)),
    ("INSERT OR REPLACE INTO untyped VALUES (?, ?)", (numeric_keys, numbers)),
    ("UPDATE OR IGNORE untyped SET k = ? WHERE k = ?", (numeric_keys, numeric_keys)),
    ("UPDATE untyped SET k = 1.0", ()),
    ("UPDATE untyped SET v = ? WHERE k = ?", (numbers, numeric_keys)),
    ("DELETE FROM untyped WHERE k = ?", (numeric_keys,)),
    ("INSERT OR IGNORE INTO blobs VALUES (?, 'a', ?)", (numeric_keys, numbers)),
    ("UPDATE OR REPLACE blobs SET k = ? WHERE k = ?", (numeric_keys, numeric_keys)),
    ("DELETE FROM blobs WHERE k = ?", (numeric_keys,)),
    ("UPDATE OR IGNORE folded SET k = ? WHERE k = 'a'", (keys,)),
    ("INSERT OR REPLACE INTO folded VALUES (?, ?)", (keys, numbers)),
    ("DELETE FROM folded WHERE k = ?", (keys,)),
    ("INSERT OR REPLACE INTO derived (id, a, b) VALUES (?, ?, ?)", (numbers, numbers, numbers)),
    ("UPDATE derived SET a = ?", (numbers,)),
    ("UPDATE masked SET v = ? WHERE oid = ?", (values, numbers)),
    ("INSERT INTO masked VALUES ('r', 1, ?)", (numbers,)),
    ("DELETE FROM masked WHERE v = ?", (numbers,)),
    ("UPDATE hidden SET v = ?", (numbers,)),
    ("INSERT INTO hidden VALUES (?, 1)", (keys,)),
    ("INSERT INTO counted (v) VALUES (?)", (numbers,)),
    ("DELETE FROM counted WHERE v = ?", (numbers,)),
    ("INSERT INTO texts VALUES (?, 'third text')", (st.sampled_from(["one", "three"]),)),
    ("UPDATE texts SET body = ? WHERE title = 'one'", (st.sampled_from(["first text", "other"]),)),
    ("DELETE FROM texts WHERE title = ?", (st.sampled_from(["one", "two", "three"]),)),
    ("UPDATE boxes SET high = ? WHERE id = ?", (numbers, numbers)),
    ("INSERT OR IGNORE INTO boxes VALUES (3, 0, ?)", (numbers,)),
    ("DELETE FROM boxes WHERE id = 3", ()),
    ("INSERT OR IGNORE INTO docs VALUES (?, ?)", (numbers, st.sampled_from(["hello", "bye"]))),
    ("DELETE FROM plain; INSERT INTO plain VALUES (1, 0, 0.5), (2, 0.0, 1.0), (3, 'x', -1)", ()),
    ("DELETE FROM keyless; INSERT INTO keyless VALUES (NULL, 'x'), (2, 0.0), (1, 1), (1, 1)", ()),
    ("BEGIN; DELETE FROM named; UPDATE plain SET v = 9; UPDATE pairs SET b = NULL; ROLLBACK", ()),
    ("SAVEPOINT s; INSERT INTO keyless VALUES (1, 1); DELETE FROM compact; ROLLBACK TO s; RELEASE s", ()),
]
schema_statements: list[Choice] = [
    ("CREATE TABLE IF NOT EXISTS made (id INTEGER PRIMARY KEY, v)", ()),
    ("CREATE TABLE IF NOT EXISTS made (v)", ()),
    ("INSERT INTO made (v) VALUES (?)", (numbers,)),
    ("DROP TABLE IF EXISTS made", ()),
    ("ALTER TABLE plain ADD COLUMN extra DEFAULT 1", ()),
    ("ALTER TABLE keyless RENAME COLUMN y TO z", ()),
    ("CREATE INDEX IF NOT EXISTS quick ON plain (v)", ()),
    ("DROP INDEX IF EXISTS quick", ()),
    ("DROP TABLE IF EXISTS compact", ()),
    ("BEGIN; CREATE TABLE gone (id INTEGER PRIMARY KEY); INSERT INTO gone VALUES (1); ROLLBACK", ()),
    ("BEGIN; ALTER TABLE plain ADD COLUMN more; UPDATE plain SET more = 1; ROLLBACK", ()),
    ("CREATE VIEW IF NOT EXISTS seen AS SELECT * FROM plain", ()),
    ("VACUUM", ()),
    ("ANALYZE", ()),
]


def statement(choices: list[Choice]) -> st.SearchStrategy[tuple[str, list[Any]]]:
    return st.sampled_from(choices).flatmap(
        lambda choice: st.tuples(st.just(choice[0]), st.tuples(*choice[1]).map(list))
    )
