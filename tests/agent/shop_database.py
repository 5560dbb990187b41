"""The seed of a small shop, and statements that never end, for the tests of the database."""

SHOP = """
CREATE TABLE customers(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, credit REAL DEFAULT 0);
CREATE TABLE orders(
    id TEXT PRIMARY KEY NOT NULL,
    customer_id INTEGER NOT NULL REFERENCES customers(id),
    status TEXT NOT NULL CHECK (status IN ('pending', 'paid', 'cancelled')),
    total REAL,
    note BLOB
);
CREATE INDEX orders_by_customer ON orders(customer_id);
INSERT INTO customers(id, name, credit) VALUES (1, 'Alice', 10.5), (2, 'Bob', 0), (3, 'Çiğdem', NULL);
INSERT INTO orders VALUES
    ('W1', 1, 'pending', 20.0, NULL), ('W2', 1, 'paid', 5.25, x'00ff'), ('W3', 2, 'pending', 99, 'hi');
PRAGMA foreign_keys = ON;
"""

_ENDLESS = "WITH RECURSIVE c(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM c)"
RUNAWAY = f"{_ENDLESS} SELECT count(*) FROM c"
RUNAWAY_WRITE = f"INSERT INTO customers(name) {_ENDLESS} SELECT 'n' || x FROM c"
