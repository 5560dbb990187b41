"""What has to hold before an order may be changed.

The checks raise ``ToolError`` in the benchmark's words.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.errors import ToolError

from .order_records import read_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.database import Database, Row

_ORDER_ITEMS = """
    SELECT items.item_id, items.product_id, items.price
    FROM order_items JOIN items ON items.item_id = order_items.item_id
    WHERE order_items.order_id = ? ORDER BY order_items.place
"""
_AVAILABLE = "SELECT price FROM items WHERE item_id = ? AND product_id = ? AND available"
_PAYMENT_METHOD = """
    SELECT payment_method_id, source, balance FROM payment_methods WHERE payment_method_id = ? AND user_id = ?
"""


def refused(fault: str) -> ToolError:
    """The error for a call that is not possible.

    It brings its own ``Error: ``, because a fault may start with blanks that a model has put into an item id.
    """
    return ToolError(f"Error: {fault}")


async def order_user(order_id: str, status: str, fault: str, db: Database) -> str:
    """The user id of an order that has this very ``status``; ``fault`` is said of one that has another."""
    order = await read_order(order_id, db)
    if order.status != status:
        raise refused(fault)
    user_id: str = order.user_id
    return user_id


async def order_items(order_id: str, db: Database) -> list[Row]:
    """``item_id``, ``product_id`` and ``price`` of the items of an order, in order."""
    return await db.fetch_all(_ORDER_ITEMS, [order_id])


def surplus_item(item_ids: Sequence[str], items: Sequence[Row]) -> str | None:
    """The first of ``item_ids`` that is named more often than the order holds it."""
    held = [item.item_id for item in items]
    return next((item_id for item_id in item_ids if item_ids.count(item_id) > held.count(item_id)), None)


async def price_difference(
    item_ids: Sequence[str], new_item_ids: Sequence[str], items: Sequence[Row], db: Database
) -> int | float:
    """What the new items cost more than those they take the place of, pair by pair, not rounded.

    The sum starts from the whole number 0, which stays where there are no pairs. Each new item must be an
    available one of the same product.
    """
    missing = surplus_item(item_ids, items)
    if missing is not None:
        raise refused(f"{missing} not found")
    if len(item_ids) != len(new_item_ids):
        raise refused("the number of items to be exchanged should match")
    difference: int | float = 0
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        old = next(item for item in items if item.item_id == item_id)
        price = await db.fetch_val(_AVAILABLE, [new_item_id, old.product_id])
        if price is None:
            raise refused(f"new item {new_item_id} not found or available")
        difference += price - old.price
    return difference


async def payment_method_of(user_id: str, payment_method_id: str, db: Database) -> Row:
    """``payment_method_id``, ``source`` and ``balance`` of a payment method of this user."""
    method = await db.fetch_one(_PAYMENT_METHOD, [payment_method_id, user_id])
    if method is None:
        raise refused("payment method not found")
    return method


def check_balance(method: Row, amount: int | float, purpose: str) -> None:
    """A gift card must hold at least ``amount``."""
    if method.source == "gift_card" and method.balance < amount:
        raise refused(f"insufficient gift card balance to pay for {purpose}")
