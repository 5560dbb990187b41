"""Looking up an order, and what can be done while it is pending."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from .address import ASSIGNMENTS
from .money import add_to_gift_card, append_payment
from .order_checks import (
    check_balance,
    order_items,
    order_user,
    payment_method_of,
    price_difference,
    refused,
)
from .order_records import read_payments, show_order

if TYPE_CHECKING:
    from reward_kit.agent.database import Database

CANCEL_REASONS = ["no longer needed", "ordered by mistake"]

_CANCEL = "UPDATE orders SET status = 'cancelled', cancel_reason = ? WHERE order_id = ?"
_REPLACE_ADDRESS = f"UPDATE orders SET {ASSIGNMENTS} WHERE order_id = :order_id"  # noqa: S608 - constants
_REPLACE_ITEM = "UPDATE order_items SET item_id = ? WHERE order_id = ? AND place = ?"
_ITEMS_MODIFIED = "UPDATE orders SET status = 'pending (item modified)' WHERE order_id = ?"
_CANNOT_MODIFY = "non-pending order cannot be modified"


async def get_order_details(order_id: str, db: Database) -> str:
    """Show an order: its items, status, address, payments and shipments.

    Args:
        order_id: The order's id with the "#" in front, such as "#W1234567".
    """
    return await show_order(order_id, db)


async def cancel_pending_order(
    order_id: str,
    # Shown as an enum but checked only after the order itself, as the benchmark does it.
    reason: Annotated[str, Field(json_schema_extra={"enum": CANCEL_REASONS})],
    db: Database,
) -> str:
    """Cancel a whole order that is still pending. What was paid goes back to where it came from: to a gift
    card at once, to PayPal or a credit card within 5 to 7 business days. State what will happen and get the
    customer's explicit yes first.

    Args:
        order_id: The order's id with the "#" in front, such as "#W1234567".
        reason: Why the customer cancels.
    """
    await order_user(order_id, "pending", "non-pending order cannot be cancelled", db)
    if reason not in CANCEL_REASONS:
        raise refused("invalid reason")
    # Every entry is paid back, refunds too: after a change of payment its first method gets the amount twice.
    for payment in await read_payments(order_id, db):
        await add_to_gift_card(payment.payment_method_id, payment.amount, db)
        await append_payment(order_id, "refund", payment.amount, payment.payment_method_id, db)
    await db.execute(_CANCEL, [reason, order_id])
    return await show_order(order_id, db)


async def modify_pending_order_address(
    order_id: str,
    address1: str,
    address2: str,
    city: str,
    state: str,
    country: str,
    zip: str,  # noqa: A002 - the benchmark's name
    db: Database,
) -> str:
    """Replace the shipping address of an order that is still pending. State the new address and get the
    customer's explicit yes first.

    Args:
        order_id: The order's id with the "#" in front, such as "#W1234567".
        address1: First line of the address: number and street, such as "12 Oak Street".
        address2: Second line of the address, such as "Apt 4"; an empty text if there is none.
        city: The city, such as "Denver".
        state: The state by its abbreviation, such as "CO".
        country: The country, such as "USA".
        zip: The zip code, such as "12345".
    """
    await order_user(order_id, "pending", _CANNOT_MODIFY, db)
    address = {"address1": address1, "address2": address2, "city": city, "state": state}
    await db.execute(_REPLACE_ADDRESS, {**address, "country": country, "zip": zip, "order_id": order_id})
    return await show_order(order_id, db)


async def modify_pending_order_items(
    order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str, db: Database
) -> str:
    """Replace items of an order that is still pending by other items of the same products. This works once
    per order, and nothing else can be changed in the order afterwards, so collect all items first. State
    the items and the price difference and get the customer's explicit yes first.

    Args:
        order_id: The order's id with the "#" in front, such as "#W1234567".
        item_ids: The ids of the items to replace, ten digits each; an item that is to be replaced twice is
            named twice.
        new_item_ids: The ids of the items to get instead, in the same order: the first replaces the first,
            and so on.
        payment_method_id: The payment method that pays or gets back the price difference, such as
            "gift_card_1234567"; it is in the customer's profile.
    """
    user_id = await order_user(order_id, "pending", _CANNOT_MODIFY, db)
    items = await order_items(order_id, db)
    difference = await price_difference(item_ids, new_item_ids, items, db)
    method = await payment_method_of(user_id, payment_method_id, db)
    check_balance(method, difference, "the new item")
    transaction_type = "payment" if difference > 0 else "refund"
    await append_payment(order_id, transaction_type, abs(difference), payment_method_id, db)
    await add_to_gift_card(payment_method_id, -difference, db)
    held = [item.item_id for item in items]
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        # The first item that has this id by now, which an earlier pair may have put there.
        index = held.index(item_id)
        held[index] = new_item_id
        await db.execute(_REPLACE_ITEM, [new_item_id, order_id, index + 1])
    await db.execute(_ITEMS_MODIFIED, [order_id])
    return await show_order(order_id, db)


async def modify_pending_order_payment(order_id: str, payment_method_id: str, db: Database) -> str:
    """Pay an order that is still pending with another payment method; what was paid with the first one goes
    back to it. State what will happen and get the customer's explicit yes first.

    Args:
        order_id: The order's id with the "#" in front, such as "#W1234567".
        payment_method_id: The payment method to use instead, such as "paypal_1234567"; it is in the
            customer's profile.
    """
    user_id = await order_user(order_id, "pending", _CANNOT_MODIFY, db)
    method = await payment_method_of(user_id, payment_method_id, db)
    first, *later = await read_payments(order_id, db)
    if later or first.transaction_type != "payment":
        raise refused("there should be exactly one payment for a pending order")
    if first.payment_method_id == payment_method_id:
        raise refused("the new payment method should be different from the current one")
    check_balance(method, first.amount, "the order")
    await append_payment(order_id, "payment", first.amount, payment_method_id, db)
    await append_payment(order_id, "refund", first.amount, first.payment_method_id, db)
    await add_to_gift_card(payment_method_id, -first.amount, db)
    await add_to_gift_card(first.payment_method_id, first.amount, db)
    return await show_order(order_id, db)
