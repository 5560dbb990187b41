"""What can be done with an order once it is delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .money import is_gift_card
from .order_checks import (
    check_balance,
    order_items,
    order_user,
    payment_method_of,
    price_difference,
    refused,
    surplus_item,
)
from .order_records import read_payments, show_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.database import Database

_REQUEST_ITEM = "INSERT INTO requested_items VALUES (?, ?, ?, ?)"
_REQUEST_EXCHANGE = "INSERT INTO exchange_requests VALUES (?, ?, ?)"
_REQUEST_RETURN = "INSERT INTO return_requests VALUES (?, ?)"
_SET_STATUS = "UPDATE orders SET status = ? WHERE order_id = ?"


async def exchange_delivered_order_items(
    order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str, db: Database
) -> str:
    """Exchange items of a delivered order for other items of the same products. An order can be exchanged or
    returned only once, so collect all items first. State the items and the price difference and get the
    customer's explicit yes first.

    Args:
        order_id: The order's id with the "#" in front, such as "#W1234567".
        item_ids: The ids of the items to exchange, ten digits each; an item that is to be exchanged twice is
            named twice.
        new_item_ids: The ids of the items to get instead, in the same order: the first for the first, and
            so on.
        payment_method_id: The payment method that pays or gets back the price difference, such as
            "gift_card_1234567"; it is in the customer's profile.
    """
    user_id = await order_user(order_id, "delivered", "non-delivered order cannot be exchanged", db)
    items = await order_items(order_id, db)
    difference = await price_difference(item_ids, new_item_ids, items, db)
    method = await payment_method_of(user_id, payment_method_id, db)
    difference = round(difference, 2)
    check_balance(method, difference, "the price difference")
    await _request(order_id, "exchange", item_ids, db)
    await _request(order_id, "exchange for", new_item_ids, db)
    await db.execute(_REQUEST_EXCHANGE, [order_id, payment_method_id, difference])
    await db.execute(_SET_STATUS, ["exchange requested", order_id])
    return await show_order(order_id, db)


async def return_delivered_order_items(
    order_id: str, item_ids: list[str], payment_method_id: str, db: Database
) -> str:
    """Return items of a delivered order for a refund. An order can be returned or exchanged only once, so
    collect all items first. State the items and the refund and get the customer's explicit yes first.

    Args:
        order_id: The order's id with the "#" in front, such as "#W1234567".
        item_ids: The ids of the items to return, ten digits each; an item that is to be returned twice is
            named twice.
        payment_method_id: The payment method that gets the refund: the one that paid for the order, or a gift
            card of the customer's; both are in the customer's profile.
    """
    user_id = await order_user(order_id, "delivered", "non-delivered order cannot be returned", db)
    await payment_method_of(user_id, payment_method_id, db)
    first = (await read_payments(order_id, db))[0]
    if not is_gift_card(payment_method_id) and payment_method_id != first.payment_method_id:
        raise refused("payment method should be either the original payment method or a gift card")
    if surplus_item(item_ids, await order_items(order_id, db)) is not None:
        raise refused("some item not found")
    await _request(order_id, "return", item_ids, db)
    await db.execute(_REQUEST_RETURN, [order_id, payment_method_id])
    await db.execute(_SET_STATUS, ["return requested", order_id])
    return await show_order(order_id, db)


async def _request(order_id: str, name: str, item_ids: Sequence[str], db: Database) -> None:
    """Keep a list of items in sorted order; so an exchange does not tell which item is for which."""
    for place, item_id in enumerate(sorted(item_ids), 1):
        await db.execute(_REQUEST_ITEM, [order_id, name, place, item_id])
