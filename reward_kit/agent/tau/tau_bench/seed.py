"""The seed of the new bundle: that of ``tau_retail_task`` if the source has the same data, else a new one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tau_retail_task
from reward_kit.agent import Database
from reward_kit.agent.tau.source import SourceError
from reward_kit.errors import RewardKitError
from tau_retail_task.tools import R

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

BUNDLE = Path(tau_retail_task.__file__).resolve().parent
SEED = BUNDLE / "seed.sql"

FINGERPRINTS = {
    "users.json": "9357f363970c71f2aa9cee4641553b0d233b17c2f52a9aa8031a0bd573b4e4ac",
    "products.json": "83eb2cf14d9c4ad60ed30d1fa040ec8a16076547b2c74b43f96a60458868f7c5",
    "orders.json": "af98e9fd917b342ef3d675c398a5075b44acae9388aa7d36390695a9bab8ea3a",
}
"""SHA-256 of ``json.dumps(data)``, which does not depend on a file's indentation."""

Row = Sequence[Any]
Domain = dict[str, dict[str, Any]]
SAME = "equal to tau-bench commit 59a200c, checked by hash; the seed is that of `tau_retail_task`"
OTHER = (
    "different from tau-bench commit 59a200c; the seed was made from them, and the tools show every user, "
    "product and order as the source has it"
)
_WITHOUT_ROWS = re.compile(
    r"^(?:INSERT INTO [^\n]* VALUES\n;|WITH given \([^\n]*\) AS \(VALUES\n\n\)\nINSERT INTO .*?;)\n",
    re.MULTILINE | re.DOTALL,
)
"""Statements without rows, for a source without credit cards for example: SQL has no empty VALUES."""
_ORDER = {
    "name": ("first_name", "last_name"),
    "address": ("address1", "address2", "city", "country", "state", "zip"),
}


def make_seed(domain: Domain, known: Mapping[str, str] = FINGERPRINTS) -> tuple[str, str]:
    """Return the SQL and a sentence about the data; raise ``SourceError`` for data that do not fit.

    ``known`` has the SHA-256 of the data in the seed of ``tau_retail_task``, by file.
    """
    fingerprints = {
        f"{name}.json": hashlib.sha256(json.dumps(content).encode()).hexdigest()
        for name, content in domain.items()
    }
    if fingerprints == known:
        return SEED.read_text(encoding="utf-8"), SAME
    for name in ("users", "products"):
        if not domain[name]:
            raise SourceError(f"the source has no {name}")
    try:
        sql = _WITHOUT_ROWS.sub("", seed_sql(**_in_order(domain)))
        asyncio.run(_check(sql, domain))
    except SourceError:
        raise
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, StopIteration) as error:
        raise SourceError(
            f"the source's data do not fit the tables: {type(error).__name__}: {error}"
        ) from error
    except RewardKitError as error:
        raise SourceError(f"the source's data do not fit the tables: {error}") from error
    return sql, OTHER


def _in_order(domain: Domain) -> Domain:
    """Return the same data with the keys of names and addresses in the order of the seed's columns."""
    return {
        collection: {
            key: {
                name: {part: value[part] for part in _ORDER[name]} if _is_record(name, value) else value
                for name, value in record.items()
            }
            for key, record in records.items()
        }
        for collection, records in domain.items()
    }


def _is_record(name: str, value: Any) -> bool:
    return name in _ORDER and isinstance(value, dict)


async def _check(sql: str, domain: Domain) -> None:
    """Raise ``SourceError`` if a tool shows a record that differs from the source."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Database.seed(Path(folder) / "seed.db", sql, origin="seed.sql") as base,
        base.fork() as db,
    ):
        for collection, tool, parameter in (
            ("users", "get_user_details", "user_id"),
            ("products", "get_product_details", "product_id"),
            ("orders", "get_order_details", "order_id"),
        ):
            for key, record in domain[collection].items():
                shown = await R.execute_tool(tool, {parameter: key}, db=db)
                if _canonical(_parsed(shown)) != _canonical(record):
                    raise SourceError(
                        f"the source's data do not fit the tables: {collection[:-1]} {key} would show "
                        f"{_difference(_parsed(shown), record)}"
                    )


def _parsed(shown: str) -> Any:
    try:
        return json.loads(shown)
    except ValueError:
        return shown


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _difference(shown: Any, record: Any) -> str:
    """List the parts of a record that differ."""
    if not isinstance(shown, dict) or not isinstance(record, dict):
        return f"{shown!r} instead of {record!r}"
    absent = object()
    names = [
        name
        for name in {**record, **shown}
        if _text(shown.get(name, absent)) != _text(record.get(name, absent))
    ]
    return "; ".join(
        f"{name} {_text(shown.get(name, absent))} instead of {_text(record.get(name, absent))}"
        for name in names
    )


def _text(value: Any) -> str:
    try:
        return _canonical(value)
    except TypeError:
        return "nothing"


# --- the statements


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
