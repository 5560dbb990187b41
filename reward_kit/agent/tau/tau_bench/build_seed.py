"""Make ``seed.sql`` of the benchmark's three JSON files.

The folder has ``users.json``, ``products.json`` and ``orders.json``, as a checkout of tau-bench has in
``tau_bench/envs/retail/data``. A SHA-256 checks their content, including the order of keys. The schema comes
from ``tau_retail_task/seed.sql``.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tau_retail_task
from reward_kit.errors import RewardKitError

BUNDLE = Path(tau_retail_task.__file__).resolve().parent
SEED = BUNDLE / "seed.sql"

FINGERPRINTS = {
    "users.json": "9357f363970c71f2aa9cee4641553b0d233b17c2f52a9aa8031a0bd573b4e4ac",
    "products.json": "83eb2cf14d9c4ad60ed30d1fa040ec8a16076547b2c74b43f96a60458868f7c5",
    "orders.json": "af98e9fd917b342ef3d675c398a5075b44acae9388aa7d36390695a9bab8ea3a",
}
"""SHA-256 of ``json.dumps(data)``, which does not depend on a file's indentation."""

Row = Sequence[Any]


class SourceError(RewardKitError):
    """The source cannot be read, or has other content than expected."""


def read_source(folder: Path) -> dict[str, dict[str, Any]]:
    """Read ``users``, ``products`` and ``orders`` by id; raises ``SourceError``."""
    source = {}
    for name, expected in FINGERPRINTS.items():
        path = folder / name
        try:
            content = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise SourceError(f"{path} cannot be read: {error}") from error
        found = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        if found != expected:
            raise SourceError(f"{path} has other data: SHA-256 {found}, expected {expected}")
        source[path.stem] = content
    return source


def seed_sql(users: dict[str, Any], products: dict[str, Any], orders: dict[str, Any]) -> str:
    """Return the text of ``seed.sql``: the schema, which is that of the bundle's seed, then the rows."""
    schema = SEED.read_text(encoding="utf-8").partition("\nINSERT INTO ")[0]
    return "\n".join([schema, *_user_sql(users), *_product_sql(products), *_order_sql(users, orders)])


def _user_sql(users: dict[str, Any]) -> list[str]:
    """Insert users and their payment methods, one kind after another."""
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
    """Insert products and items with their options."""
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
                raise SourceError(
                    f"item {item['item_id']} has other options than the first item of its product"
                )
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
""",  # noqa: S608 - literals of this module
    ]


def _order_sql(users: dict[str, Any], orders: dict[str, Any]) -> list[str]:
    """Insert orders with their items, payments and shipments."""
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
        "-- Orders to the user's default address.",
        _insert_selected(f"orders ({columns}, {address})", columns, at_home, select),
        "-- Orders to another address.",
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
    comment = "-- Every order was paid once; cancelled orders were refunded.\n"
    return comment + _insert_selected(target, columns, rows, paid) + "\n" + refunded


def _insert(table: str, columns: str, rows: Iterable[Row]) -> str:
    return f"INSERT INTO {table} ({columns}) VALUES\n{_values(rows)};\n"


def _insert_selected(target: str, columns: str, rows: Iterable[Row], select: str) -> str:
    """Insert the result of ``select``, which reads the rows as the table ``given``."""
    return f"WITH given ({columns}) AS (VALUES\n{_values(rows)}\n)\nINSERT INTO {target}\n{select};\n"


def _insert_lists(target: str, owner: str, rows: Iterable[Row]) -> str:
    """Insert a row for each element of each ``owner``'s list."""
    select = f"SELECT {owner}, key + 1, value FROM given, json_each(list)"  # noqa: S608 - constants
    return _insert_selected(target, f"{owner}, list", rows, select)


def _values(rows: Iterable[Row]) -> str:
    """Write each row on a line."""
    return ",\n".join(f"({','.join(map(_literal, row))})" for row in rows)


def _literal(value: Any) -> str:
    if isinstance(value, list):
        value = json.dumps(value, separators=(",", ":"))
    if isinstance(value, str):
        escaped = value.replace("'", "''")
        return f"'{escaped}'"
    return str(int(value)) if isinstance(value, bool) else repr(value)
