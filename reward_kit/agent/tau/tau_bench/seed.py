"""The seed of the new bundle: that of ``tau_retail_task`` if the source has the same data, else a new one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
from itertools import chain, starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tau_retail_task
from reward_kit.agent import Database
from reward_kit.agent.tau.source import SourceError
from reward_kit.errors import RewardKitError
from tau_retail_task.tools import R

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

BUNDLE = Path(tau_retail_task.__file__).resolve().parent
SEED = BUNDLE / "seed.sql"

FINGERPRINTS = {
    "users.json": "9357f363970c71f2aa9cee4641553b0d233b17c2f52a9aa8031a0bd573b4e4ac",
    "products.json": "83eb2cf14d9c4ad60ed30d1fa040ec8a16076547b2c74b43f96a60458868f7c5",
    "orders.json": "af98e9fd917b342ef3d675c398a5075b44acae9388aa7d36390695a9bab8ea3a",
}
"""SHA-256 of ``json.dumps(data)``, which does not depend on a file's indentation."""

Domain = dict[str, dict[str, Any]]
SAME = "equal to tau-bench commit 59a200c, checked by hash; the seed is that of `tau_retail_task`"
OTHER = (
    "different from tau-bench commit 59a200c; the seed was made from them, and the tools show every user, "
    "product and order as the source has it"
)
_NAME = ("first_name", "last_name")
_ADDRESS = ("address1", "address2", "city", "country", "state", "zip")


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
        sql = seed_sql(**domain)
        asyncio.run(_check(sql, domain))
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, RewardKitError) as error:
        fault = f"{error}" if isinstance(error, RewardKitError) else f"{type(error).__name__}: {error}"
        raise SourceError(f"the source's data do not fit the tables: {fault}") from error
    return sql, OTHER


async def _check(sql: str, domain: Domain) -> None:
    """Raise ``SourceError`` if a tool shows a record that differs from the source."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Database.seed(Path(folder) / "seed.db", sql, origin="seed.sql") as base,
        base.fork() as db,
    ):
        for kind, collection in (("user", "users"), ("product", "products"), ("order", "orders")):
            for key, record in domain[collection].items():
                shown = await R.execute_tool(f"get_{kind}_details", {f"{kind}_id": key}, db=db)
                if difference := _difference(shown, record):
                    raise SourceError(f"{kind} {key} would show {difference}")


def _difference(shown: str, record: dict[str, Any]) -> str:
    """List the parts of a record that a tool shows otherwise."""
    theirs = {name: json.dumps(value, sort_keys=True) for name, value in record.items()}
    try:
        ours = {name: json.dumps(value, sort_keys=True) for name, value in json.loads(shown).items()}
    except ValueError:
        return f"{shown!r} instead of {record!r}"
    pairs = {name: (ours.get(name, "nothing"), theirs.get(name, "nothing")) for name in {**theirs, **ours}}
    return "; ".join(
        f"{name} {one} instead of {other}" for name, (one, other) in pairs.items() if one != other
    )


# --- the statements


def seed_sql(users: dict[str, Any], products: dict[str, Any], orders: dict[str, Any]) -> str:
    """Return the text of ``seed.sql``: the schema, which is that of the bundle's seed, then the rows."""
    schema = SEED.read_text(encoding="utf-8").partition("\nINSERT INTO ")[0]
    tables: dict[str, list[dict[str, Any]]] = {}
    for table, row in chain(_user_rows(users), _product_rows(products), _order_rows(users, orders)):
        tables.setdefault(table, []).append(row)
    return "\n".join([schema, *starmap(_insert, tables.items())])


def _user_rows(users: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for position, (user_id, user) in enumerate(users.items(), 1):
        name, address = _parts(user["name"], _NAME), _parts(user["address"], _ADDRESS)
        yield "users", {"user_id": user_id, "position": position, **name, "email": user["email"], **address}
        for place, method in enumerate(user["payment_methods"].values(), 1):
            details = {name: method.get(name) for name in ("source", "brand", "last_four", "balance")}
            key = {"payment_method_id": method["id"], "user_id": user_id, "place": place}
            yield "payment_methods", key | details


def _product_rows(products: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for product_id, product in products.items():
        yield "products", {"product_id": product_id, "name": product["name"]}
        for place, item in enumerate(product["variants"].values(), 1):
            key = {"item_id": item["item_id"], "product_id": product_id, "place": place}
            yield "items", key | _parts(item, ("price", "available"))
            for number, (name, value) in enumerate(item["options"].items(), 1):
                option = {"item_id": item["item_id"], "place": number, "name": name, "value": value}
                yield "item_options", option


def _order_rows(users: dict[str, Any], orders: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The orders; each was paid once, and cancelled ones were refunded."""
    for order_id, order in orders.items():
        place = users[order["user_id"]]["orders"].index(order_id) + 1
        key = {"order_id": order_id, "user_id": order["user_id"], "place": place, "status": order["status"]}
        yield "orders", key | _parts(order["address"], _ADDRESS)
        for number, item in enumerate(order["items"], 1):
            yield "order_items", {"order_id": order_id, "place": number, "item_id": item["item_id"]}
        paid = _parts(order["payment_history"][0], ("amount", "payment_method_id"))
        kinds = ["payment", "refund"] if order["status"] == "cancelled" else ["payment"]
        for number, kind in enumerate(kinds, 1):
            yield "payments", {"order_id": order_id, "place": number, "transaction_type": kind, **paid}
        for tracking_id in chain.from_iterable(one["tracking_id"] for one in order["fulfillments"]):
            yield "fulfillments", {"order_id": order_id, "tracking_id": tracking_id}


def _parts(record: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: record[name] for name in names}


def _insert(table: str, rows: list[dict[str, Any]]) -> str:
    values = ",\n".join(f"({','.join(map(_literal, row.values()))})" for row in rows)
    return f"INSERT INTO {table} ({', '.join(rows[0])}) VALUES\n{values};\n"


def _literal(value: Any) -> str:
    if isinstance(value, str):
        return "'{}'".format(value.replace("'", "''"))
    return "NULL" if value is None else str(int(value)) if isinstance(value, bool) else repr(value)
