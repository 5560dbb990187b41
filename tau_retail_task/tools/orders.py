"""Orders: showing one, changing one that is pending, returning or exchanging items of one that was delivered.

Amounts are computed in Python and never by SQL: answers and reward depend on the last bit of a number, and
on its type.
"""

from collections.abc import Sequence

from reward_kit.agent import Database, Row, ToolError, ToolRegistry

from . import faithful

R = ToolRegistry("orders")

_ITEMS = """
    SELECT items.item_id, items.product_id, items.price
    FROM order_items JOIN items ON items.item_id = order_items.item_id
    WHERE order_items.order_id = ? ORDER BY order_items.place
"""
_PAYMENTS = """
    SELECT transaction_type, amount, payment_method_id FROM payments WHERE order_id = ? ORDER BY place
"""
_APPEND_PAYMENT = """
    INSERT INTO payments (order_id, place, transaction_type, amount, payment_method_id)
    SELECT :order_id, count(*) + 1, :transaction_type, :amount, :payment_method_id
    FROM payments WHERE order_id = :order_id
"""
_PAYMENT_METHOD = "SELECT source, balance FROM payment_methods WHERE payment_method_id = ? AND user_id = ?"
_BALANCE = "SELECT balance FROM payment_methods WHERE payment_method_id = ? AND source = 'gift_card'"
_REPLACE_ADDRESS = """
    UPDATE orders
    SET address1 = ?, address2 = ?, city = ?, state = ?, country = ?, zip = ?, address_replaced = 1
    WHERE order_id = ?
"""
_CANNOT_MODIFY = "non-pending order cannot be modified"


@R.tool
async def get_order_details(order_id: str, db: Database) -> str:
    """Show an order: its items, status, address, payments and shipments.

    Args:
        order_id: The order's id with the "#" in front, such as "#W1234567".
    """
    return await faithful.order_text(order_id, db)


@R.tool
async def cancel_pending_order(order_id: str, reason: faithful.CancelReason, db: Database) -> str:
    """Cancel a whole order that is still pending. What was paid goes back to where it came from: to a gift
    card at once, to PayPal or a credit card within 5 to 7 business days. State what will happen and get the
    customer's explicit yes first.

    Args:
        order_id: The order's id with the "#" in front, such as "#W1234567".
        reason: Why the customer cancels.
    """
    await _user_of(order_id, "pending", "non-pending order cannot be cancelled", db)
    if reason not in faithful.CANCEL_REASONS:
        raise ToolError("invalid reason")
    # Refunds are refunded too: after a change of the payment, the first method gets the amount twice.
    for payment in await db.fetch_all(_PAYMENTS, [order_id]):
        await _add_to_gift_card(payment.payment_method_id, payment.amount, db)
        await _append_payment(order_id, "refund", payment.amount, payment.payment_method_id, db)
    await db.execute(
        "UPDATE orders SET status = 'cancelled', cancel_reason = ? WHERE order_id = ?", [reason, order_id]
    )
    return await faithful.order_text(order_id, db)


@R.tool
async def modify_pending_order_address(
    order_id: str,
    address1: str,
    address2: str,
    city: str,
    state: str,
    country: str,
    zip: str,
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
    await _user_of(order_id, "pending", _CANNOT_MODIFY, db)
    await db.execute(_REPLACE_ADDRESS, [address1, address2, city, state, country, zip, order_id])
    return await faithful.order_text(order_id, db)


@R.tool
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
    user_id = await _user_of(order_id, "pending", _CANNOT_MODIFY, db)
    items = await db.fetch_all(_ITEMS, [order_id])
    difference = await _price_difference(item_ids, new_item_ids, items, db)
    method = await _payment_method(payment_method_id, user_id, db)
    _check_balance(method, difference, "the new item")
    transaction_type = "payment" if difference > 0 else "refund"
    await _append_payment(order_id, transaction_type, abs(difference), payment_method_id, db)
    await _add_to_gift_card(payment_method_id, -difference, db)
    held = [item.item_id for item in items]
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        place = held.index(item_id)  # the first item with this id, which an earlier pair may have put there
        held[place] = new_item_id
        await db.execute(
            "UPDATE order_items SET item_id = ? WHERE order_id = ? AND place = ?",
            [new_item_id, order_id, place + 1],
        )
    await _set_status(order_id, "pending (item modified)", db)
    return await faithful.order_text(order_id, db)


@R.tool
async def modify_pending_order_payment(order_id: str, payment_method_id: str, db: Database) -> str:
    """Pay an order that is still pending with another payment method; what was paid with the first one goes
    back to it. State what will happen and get the customer's explicit yes first.

    Args:
        order_id: The order's id with the "#" in front, such as "#W1234567".
        payment_method_id: The payment method to use instead, such as "paypal_1234567"; it is in the
            customer's profile.
    """
    user_id = await _user_of(order_id, "pending", _CANNOT_MODIFY, db)
    method = await _payment_method(payment_method_id, user_id, db)
    first, *later = await db.fetch_all(_PAYMENTS, [order_id])
    if later or first.transaction_type != "payment":
        raise ToolError("there should be exactly one payment for a pending order")
    if first.payment_method_id == payment_method_id:
        raise ToolError("the new payment method should be different from the current one")
    _check_balance(method, first.amount, "the order")
    await _append_payment(order_id, "payment", first.amount, payment_method_id, db)
    await _append_payment(order_id, "refund", first.amount, first.payment_method_id, db)
    await _add_to_gift_card(payment_method_id, -first.amount, db)
    await _add_to_gift_card(first.payment_method_id, first.amount, db)
    return await faithful.order_text(order_id, db)


@R.tool
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
    user_id = await _user_of(order_id, "delivered", "non-delivered order cannot be exchanged", db)
    items = await db.fetch_all(_ITEMS, [order_id])
    difference = round(await _price_difference(item_ids, new_item_ids, items, db), 2)
    method = await _payment_method(payment_method_id, user_id, db)
    _check_balance(method, difference, "the price difference")
    await _request(order_id, "exchange", item_ids, db)
    await _request(order_id, "exchange for", new_item_ids, db)
    await db.execute(
        "INSERT INTO exchange_requests VALUES (?, ?, ?)", [order_id, payment_method_id, difference]
    )
    await _set_status(order_id, "exchange requested", db)
    return await faithful.order_text(order_id, db)


@R.tool
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
    user_id = await _user_of(order_id, "delivered", "non-delivered order cannot be returned", db)
    method = await _payment_method(payment_method_id, user_id, db)
    first = (await db.fetch_all(_PAYMENTS, [order_id]))[0]
    if method.source != "gift_card" and payment_method_id != first.payment_method_id:
        raise ToolError("payment method should be either the original payment method or a gift card")
    if _surplus(item_ids, await db.fetch_all(_ITEMS, [order_id])) is not None:
        raise ToolError("some item not found")
    await _request(order_id, "return", item_ids, db)
    await db.execute("INSERT INTO return_requests VALUES (?, ?)", [order_id, payment_method_id])
    await _set_status(order_id, "return requested", db)
    return await faithful.order_text(order_id, db)


async def _user_of(order_id: str, status: str, fault: str, db: Database) -> str:
    """Return the user id of an order with this status; raise ``fault`` if it has another status."""
    order = await db.fetch_one("SELECT user_id, status FROM orders WHERE order_id = ?", [order_id])
    if order is None:
        raise ToolError("order not found")
    if order.status != status:
        raise ToolError(fault)
    user_id: str = order.user_id
    return user_id


def _surplus(item_ids: Sequence[str], items: Sequence[Row]) -> str | None:
    """Return the first of ``item_ids`` that is named more often than the order has it."""
    held = [item.item_id for item in items]
    return next((item_id for item_id in item_ids if item_ids.count(item_id) > held.count(item_id)), None)


async def _price_difference(
    item_ids: Sequence[str], new_item_ids: Sequence[str], items: Sequence[Row], db: Database
) -> int | float:
    """Sum the price differences of the pairs, unrounded; 0 without pairs.

    Raises ``ToolError`` unless each new item is available and of the same product as the old one.
    """
    surplus = _surplus(item_ids, items)
    if surplus is not None:
        raise faithful.item_not_found(surplus)
    if len(item_ids) != len(new_item_ids):
        raise ToolError("the number of items to be exchanged should match")
    difference: int | float = 0
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        old = next(item for item in items if item.item_id == item_id)
        price = await db.fetch_val(
            "SELECT price FROM items WHERE item_id = ? AND product_id = ? AND available",
            [new_item_id, old.product_id],
        )
        if price is None:
            raise ToolError(f"new item {new_item_id} not found or available")
        difference += price - old.price
    return difference


async def _payment_method(payment_method_id: str, user_id: str, db: Database) -> Row:
    """Return ``source`` and ``balance`` of a payment method of this user."""
    method = await db.fetch_one(_PAYMENT_METHOD, [payment_method_id, user_id])
    if method is None:
        raise ToolError("payment method not found")
    return method


def _check_balance(method: Row, amount: int | float, purpose: str) -> None:
    """Raise ``ToolError`` if a gift card has less than ``amount``."""
    if method.source == "gift_card" and method.balance < amount:
        raise ToolError(f"insufficient gift card balance to pay for {purpose}")


async def _append_payment(
    order_id: str, transaction_type: str, amount: int | float, payment_method_id: str, db: Database
) -> None:
    """Add a ``payment`` or ``refund`` to the end of the order's payment history."""
    payment = {"transaction_type": transaction_type, "amount": amount, "payment_method_id": payment_method_id}
    await db.execute(_APPEND_PAYMENT, {"order_id": order_id, **payment})


async def _add_to_gift_card(payment_method_id: str, amount: int | float, db: Database) -> None:
    """Add ``amount`` to a gift card's balance, rounded to cents; leave other payment methods alone."""
    balance = await db.fetch_val(_BALANCE, [payment_method_id])
    if balance is not None:
        await db.execute(
            "UPDATE payment_methods SET balance = ? WHERE payment_method_id = ?",
            [round(balance + amount, 2), payment_method_id],
        )


async def _request(order_id: str, name: str, item_ids: Sequence[str], db: Database) -> None:
    """Store a list of items, sorted: an exchange does not keep which new item is for which old one."""
    for place, item_id in enumerate(sorted(item_ids), 1):
        await db.execute("INSERT INTO requested_items VALUES (?, ?, ?, ?)", [order_id, name, place, item_id])


async def _set_status(order_id: str, status: str, db: Database) -> None:
    await db.execute("UPDATE orders SET status = ? WHERE order_id = ?", [status, order_id])
