"""Orders as the tools read and show them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.errors import ToolError

from .address import COLUMNS, address_record

if TYPE_CHECKING:
    from reward_kit.agent.database import Database, Row

_ORDER = f"""
    SELECT order_id, user_id, status, cancel_reason, {COLUMNS} FROM orders WHERE order_id = ?
"""  # noqa: S608 - constants
_WITH_PAYMENTS = f"""
    SELECT order_id, user_id, status, cancel_reason, {COLUMNS}, tracking_id,
           transaction_type, amount, payment_method_id
    FROM orders LEFT JOIN fulfillments USING (order_id) LEFT JOIN payments USING (order_id)
    WHERE orders.order_id = ? ORDER BY payments.place
"""  # noqa: S608 - constants
_ITEMS = """
    SELECT order_items.place, products.name, items.product_id, items.item_id, items.price,
           item_options.name, item_options.value
    FROM order_items
    JOIN items ON items.item_id = order_items.item_id
    JOIN products ON products.product_id = items.product_id
    LEFT JOIN item_options ON item_options.item_id = items.item_id
    WHERE order_items.order_id = ?
    ORDER BY order_items.place, item_options.place
"""
_PAYMENTS = """
    SELECT transaction_type, amount, payment_method_id FROM payments WHERE order_id = ? ORDER BY place
"""
_RETURN = "SELECT payment_method_id FROM return_requests WHERE order_id = ?"
_EXCHANGE = "SELECT payment_method_id, price_difference FROM exchange_requests WHERE order_id = ?"
_REQUESTED = "SELECT list, item_id FROM requested_items WHERE order_id = ? ORDER BY list, place"


async def read_order(order_id: str, db: Database) -> Row:
    """The row of the order; raises ``ToolError`` where there is none."""
    order = await db.fetch_one(_ORDER, [order_id])
    if order is None:
        raise ToolError("Error: order not found")
    return order


async def show_order(order_id: str, db: Database) -> str:
    """The order with all that belongs to it, as JSON text; raises ``ToolError`` where there is none."""
    rows = await db.fetch_all(_WITH_PAYMENTS, [order_id])
    if not rows:
        raise ToolError("Error: order not found")
    order = rows[0]
    items = await _items(order_id, db)
    record = {
        "order_id": order_id,
        "user_id": order.user_id,
        "address": address_record(order),
        "items": items,
        "fulfillments": [
            # A shipment holds the whole order, and what has shipped is never changed.
            {"tracking_id": [order.tracking_id], "item_ids": [item["item_id"] for item in items]}
        ]
        if order.tracking_id is not None
        else [],
        "status": order.status,
        "payment_history": [
            {name: payment[name] for name in ("transaction_type", "amount", "payment_method_id")}
            for payment in rows
            if payment.transaction_type is not None
        ],
    }
    record.update(await _outcome(order, db))
    return json.dumps(record)


async def read_payments(order_id: str, db: Database) -> list[Row]:
    """``transaction_type``, ``amount``, ``payment_method_id`` of payments and refunds, oldest first."""
    return await db.fetch_all(_PAYMENTS, [order_id])


async def _items(order_id: str, db: Database) -> list[dict[str, Any]]:
    items: dict[int, dict[str, Any]] = {}
    rows = await db.fetch_all(_ITEMS, [order_id])
    for place, name, product_id, item_id, price, option, value in rows:
        if place not in items:
            items[place] = {
                "name": name,
                "product_id": product_id,
                "item_id": item_id,
                "price": price,
                "options": {},
            }
        if option is not None:
            items[place]["options"][option] = value
    return list(items.values())


async def _outcome(order: Row, db: Database) -> dict[str, Any]:
    """What cancelling, returning or exchanging has added to the order."""
    if order.cancel_reason is not None:
        return {"cancel_reason": order.cancel_reason}
    if order.status not in ("return requested", "exchange requested"):
        return {}
    lists: dict[str, list[str]] = {"return": [], "exchange": [], "exchange for": []}
    for name, item_id in await db.fetch_all(_REQUESTED, [order.order_id]):
        lists[name].append(item_id)
    if order.status == "return requested":
        method = await db.fetch_val(_RETURN, [order.order_id])
        return {"return_items": lists["return"], "return_payment_method_id": method}
    ((method, difference),) = await db.fetch_all(_EXCHANGE, [order.order_id])
    return {
        "exchange_items": lists["exchange"],
        "exchange_new_items": lists["exchange for"],
        "exchange_payment_method_id": method,
        "exchange_price_difference": difference,
    }
