"""Write ``seed.sql`` from the benchmark's three JSON files.

``python -m tau_retail_task.build_seed --from FOLDER --out seed.sql``, where the folder holds ``users.json``,
``products.json`` and ``orders.json`` as in a checkout of tau-bench (``tau_bench/envs/retail/data``). The
files are read as data only, and checked by a SHA-256 over what they hold, the order of keys included.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

FINGERPRINTS = {
    "users.json": "9357f363970c71f2aa9cee4641553b0d233b17c2f52a9aa8031a0bd573b4e4ac",
    "products.json": "83eb2cf14d9c4ad60ed30d1fa040ec8a16076547b2c74b43f96a60458868f7c5",
    "orders.json": "af98e9fd917b342ef3d675c398a5075b44acae9388aa7d36390695a9bab8ea3a",
}
"""SHA-256 of ``json.dumps(data)``: how a file is indented does not count."""

SCHEMA = """\
-- The retail domain of tau-bench: a shop with 500 users, 50 products in 591 items, and 1000 orders.
-- Written by build_seed.py from the data of github.com/sierra-research/tau-bench (MIT licence).
--
-- `place` counts from 1 and keeps the order of a list. Columns without a type hold numbers just as they are
-- written: 60 stays a whole number and 60.0 a float, and the tools show the difference.

CREATE TABLE users (
    user_id          TEXT PRIMARY KEY,
    position         INTEGER NOT NULL UNIQUE,     -- where several users fit a search, the first one is found
    first_name       TEXT NOT NULL,
    last_name        TEXT NOT NULL,
    email            TEXT NOT NULL,
    address1         TEXT NOT NULL,
    address2         TEXT NOT NULL,
    city             TEXT NOT NULL,
    country          TEXT NOT NULL,
    state            TEXT NOT NULL,
    zip              TEXT NOT NULL,
    address_replaced INTEGER NOT NULL DEFAULT 0   -- 1: written by a tool; decides how tools show it, no more
) WITHOUT ROWID;
CREATE INDEX users_by_email ON users (email COLLATE NOCASE, position);
CREATE INDEX users_by_name ON users (last_name COLLATE NOCASE, first_name COLLATE NOCASE, zip, position);

CREATE TABLE payment_methods (
    payment_method_id TEXT PRIMARY KEY NOT NULL,
    user_id           TEXT NOT NULL REFERENCES users,
    place             INTEGER NOT NULL,
    source            TEXT NOT NULL CHECK (source IN ('credit_card', 'gift_card', 'paypal')),
    brand             TEXT,                       -- of credit cards
    last_four         TEXT,                       -- of credit cards
    balance                                       -- of gift cards, in dollars
);
CREATE UNIQUE INDEX payment_methods_by_user ON payment_methods (user_id, place);

CREATE TABLE products (
    product_id TEXT PRIMARY KEY,
    name       TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX products_by_name ON products (name);

CREATE TABLE items (                              -- what can be ordered: one variant of a product
    item_id    TEXT PRIMARY KEY,
    product_id TEXT NOT NULL REFERENCES products,
    place      INTEGER NOT NULL,
    price      REAL NOT NULL,
    available  INTEGER NOT NULL CHECK (available IN (0, 1))
) WITHOUT ROWID;
CREATE UNIQUE INDEX items_by_product ON items (product_id, place);

CREATE TABLE item_options (                       -- the items of a product have the same options
    item_id TEXT NOT NULL REFERENCES items,
    place   INTEGER NOT NULL,
    name    TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (item_id, place)
) WITHOUT ROWID;

CREATE TABLE orders (
    order_id         TEXT PRIMARY KEY,
    user_id          TEXT NOT NULL REFERENCES users,
    place            INTEGER NOT NULL,
    status           TEXT NOT NULL CHECK (status IN (
                         'pending', 'pending (item modified)', 'processed', 'delivered', 'cancelled',
                         'return requested', 'exchange requested')),
    address1         TEXT NOT NULL,
    address2         TEXT NOT NULL,
    city             TEXT NOT NULL,
    country          TEXT NOT NULL,
    state            TEXT NOT NULL,
    zip              TEXT NOT NULL,
    address_replaced INTEGER NOT NULL DEFAULT 0,
    cancel_reason    TEXT
) WITHOUT ROWID;
CREATE UNIQUE INDEX orders_by_user ON orders (user_id, place);

CREATE TABLE order_items (
    order_id TEXT NOT NULL REFERENCES orders,
    place    INTEGER NOT NULL,
    item_id  TEXT NOT NULL REFERENCES items,
    PRIMARY KEY (order_id, place)
) WITHOUT ROWID;

CREATE TABLE payments (                           -- the payment history of an order
    order_id          TEXT NOT NULL REFERENCES orders,
    place             INTEGER NOT NULL,
    transaction_type  TEXT NOT NULL CHECK (transaction_type IN ('payment', 'refund')),
    amount            NOT NULL,                   -- in dollars
    payment_method_id TEXT NOT NULL REFERENCES payment_methods,
    PRIMARY KEY (order_id, place)
);

CREATE TABLE fulfillments (                       -- a shipment holds all items of its order
    order_id    TEXT PRIMARY KEY REFERENCES orders,
    tracking_id TEXT NOT NULL
) WITHOUT ROWID;

CREATE TABLE return_requests (
    order_id          TEXT PRIMARY KEY NOT NULL REFERENCES orders,
    payment_method_id TEXT NOT NULL REFERENCES payment_methods
) WITHOUT ROWID;

CREATE TABLE exchange_requests (
    order_id          TEXT PRIMARY KEY NOT NULL REFERENCES orders,
    payment_method_id TEXT NOT NULL REFERENCES payment_methods,
    price_difference  NOT NULL                    -- in dollars; above 0: the customer pays
);

CREATE TABLE requested_items (                    -- which item is exchanged for which is not kept
    order_id TEXT NOT NULL REFERENCES orders,
    list     TEXT NOT NULL CHECK (list IN ('return', 'exchange', 'exchange for')),
    place    INTEGER NOT NULL,
    item_id  TEXT NOT NULL REFERENCES items,
    PRIMARY KEY (order_id, list, place)
) WITHOUT ROWID;

CREATE VIEW catalogue AS                          -- for people: every item with its options in words
SELECT items.item_id, products.name AS product, items.price, items.available,
       group_concat(item_options.name || ': ' || item_options.value, ', ') AS options
FROM items JOIN products USING (product_id) JOIN item_options USING (item_id)
GROUP BY items.item_id;
"""

Row = Sequence[Any]


class SourceError(Exception):
    """The source files are not there, or are not what the seed is made from."""


def read_source(folder: Path) -> dict[str, dict[str, Any]]:
    """``users``, ``products`` and ``orders`` by id; raises ``SourceError``."""
    source = {}
    for name, expected in FINGERPRINTS.items():
        path = folder / name
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise SourceError(f"{path} cannot be read: {error}") from error
        found = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        if found != expected:
            raise SourceError(f"{path} holds other data: SHA-256 {found}, expected {expected}")
        source[path.stem] = content
    return source


def seed_sql(users: dict[str, Any], products: dict[str, Any], orders: dict[str, Any]) -> str:
    """The text of ``seed.sql``: the schema, then the rows."""
    return "\n".join([SCHEMA, *_user_sql(users), *_product_sql(products), *_order_sql(users, orders)])


def _user_sql(users: dict[str, Any]) -> list[str]:
    """Users and their payment methods, kind by kind."""
    rows = [
        (user_id, position, *user["name"].values(), user["email"], *user["address"].values())
        for position, (user_id, user) in enumerate(users.items(), 1)
    ]
    columns = "user_id, position, first_name, last_name, email, address1, address2, city, country, state, zip"
    parts = [_insert("users", columns, rows)]
    for source, details in (
        ("credit_card", ("brand", "last_four")),
        ("gift_card", ("balance",)),
        ("paypal", ()),
    ):
        methods = [
            (method["id"], user_id, place, *(method[detail] for detail in details))
            for user_id, user in users.items()
            for place, method in enumerate(user["payment_methods"].values(), 1)
            if method["source"] == source
        ]
        columns = ", ".join(["payment_method_id", "user_id", "place", *details])
        target = f"payment_methods ({columns}, source)"
        select = f"SELECT *, '{source}' FROM given"  # noqa: S608 - constants
        parts.append(_insert_selected(target, columns, methods, select))
    return parts


def _product_sql(products: dict[str, Any]) -> list[str]:
    """Products and items with their options."""
    names: list[Row] = []
    options: list[Row] = []
    items: list[Row] = []
    values: list[Row] = []
    for product_id, product in products.items():
        variants = product["variants"].values()
        differing = list(next(iter(variants))["options"])
        names.append((product_id, product["name"]))
        options.append((product_id, differing))
        for place, item in enumerate(variants, 1):
            if list(item["options"]) != differing:
                raise SourceError(f"item {item['item_id']} has other options than its product")
            items.append((item["item_id"], product_id, place, item["price"], item["available"]))
            values.append((item["item_id"], list(item["options"].values())))
    return [
        _insert("products", "product_id, name", names),
        _insert("items", "item_id, product_id, place, price, available", items),
        f"""\
WITH differing (product_id, names) AS (VALUES
{_values(options)}
),
given (item_id, chosen) AS (VALUES
{_values(values)}
)
INSERT INTO item_options (item_id, place, name, value)
SELECT item_id, key + 1, value, json_extract(chosen, '$[' || key || ']')
FROM given JOIN items USING (item_id) JOIN differing USING (product_id), json_each(names);
""",  # noqa: S608 - data of this file's own making
    ]


def _order_sql(users: dict[str, Any], orders: dict[str, Any]) -> list[str]:
    """Orders with what belongs to them."""
    at_home, elsewhere = [], []
    for order_id, order in orders.items():
        user = users[order["user_id"]]
        row = (order_id, order["user_id"], user["orders"].index(order_id) + 1, order["status"])
        if order["address"] == user["address"]:
            at_home.append(row)
        else:
            elsewhere.append((*row, *order["address"].values()))
    columns = "order_id, user_id, place, status"
    address = "address1, address2, city, country, state, zip"
    items = [(order_id, [item["item_id"] for item in order["items"]]) for order_id, order in orders.items()]
    fulfillments = [
        (order_id, tracking_id)
        for order_id, order in orders.items()
        for fulfillment in order["fulfillments"]
        for tracking_id in fulfillment["tracking_id"]
    ]
    select = f"SELECT {columns}, {address} FROM given JOIN users USING (user_id)"  # noqa: S608 - constants
    return [
        "-- Orders that go to the user's default address.",
        _insert_selected(f"orders ({columns}, {address})", columns, at_home, select),
        "-- Orders that go somewhere else.",
        _insert("orders", f"{columns}, {address}", elsewhere),
        _insert_lists("order_items (order_id, place, item_id)", "order_id", items),
        _payment_sql(orders),
        _insert("fulfillments", "order_id, tracking_id", fulfillments),
    ]


def _payment_sql(orders: dict[str, Any]) -> str:
    firsts = [(order_id, order["payment_history"][0]) for order_id, order in orders.items()]
    rows = [(order_id, first["amount"], first["payment_method_id"]) for order_id, first in firsts]
    target = "payments (order_id, place, transaction_type, amount, payment_method_id)"
    paid = "SELECT order_id, 1, 'payment', amount, payment_method_id FROM given"
    refunded = f"""\
INSERT INTO {target}
SELECT order_id, 2, 'refund', amount, payment_method_id FROM payments JOIN orders USING (order_id)
WHERE status = 'cancelled';
"""  # noqa: S608 - constants
    columns = "order_id, amount, payment_method_id"
    comment = "-- Every order was paid once, and of those that are cancelled all was paid back.\n"
    return comment + _insert_selected(target, columns, rows, paid) + "\n" + refunded


def _insert(table: str, columns: str, rows: Iterable[Row]) -> str:
    return f"INSERT INTO {table} ({columns}) VALUES\n{_values(rows)};\n"


def _insert_selected(target: str, columns: str, rows: Iterable[Row], select: str) -> str:
    """What ``select`` makes of the rows ``given``."""
    return f"WITH given ({columns}) AS (VALUES\n{_values(rows)}\n)\nINSERT INTO {target}\n{select};\n"


def _insert_lists(target: str, owner: str, rows: Iterable[Row]) -> str:
    """A row for each member of the list that each ``owner`` has."""
    select = f"SELECT {owner}, key + 1, value FROM given, json_each(list)"  # noqa: S608 - constants
    return _insert_selected(target, f"{owner}, list", rows, select)


def _values(rows: Iterable[Row]) -> str:
    """The rows, one a line."""
    return ",\n".join(f"({','.join(map(_literal, row))})" for row in rows)


def _literal(value: Any) -> str:
    if isinstance(value, list):
        value = json.dumps(value, separators=(",", ":"))
    if isinstance(value, str):
        escaped = value.replace("'", "''")
        return f"'{escaped}'"
    return str(int(value)) if isinstance(value, bool) else repr(value)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tau_retail_task.build_seed", description=__doc__)
    parser.add_argument(
        "--from", dest="folder", type=Path, required=True, help="folder with the three JSON files"
    )
    parser.add_argument("--out", type=Path, required=True, help="where to write the SQL")
    options = parser.parse_args(arguments)
    try:
        text = seed_sql(**read_source(options.folder))
        unfinished = options.out.with_name(f".{options.out.name}.{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8", newline="\n")
        unfinished.replace(options.out)
    except (SourceError, OSError) as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    sys.stdout.write(f"{options.out}: {len(text):,} characters\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
