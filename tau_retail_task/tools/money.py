"""Writing payments, refunds and gift card balances.

Amounts are Python's numbers and are never rounded or summed by SQL: what the tools show depends on their
last bit, and on whether they are whole numbers or floats.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_kit.agent.database import Database

_APPEND = """
    INSERT INTO payments (order_id, place, transaction_type, amount, payment_method_id)
    SELECT :order_id, count(*) + 1, :transaction_type, :amount, :payment_method_id
    FROM payments WHERE order_id = :order_id
"""
_BALANCE = "SELECT balance FROM payment_methods WHERE payment_method_id = ?"
_SET_BALANCE = "UPDATE payment_methods SET balance = ? WHERE payment_method_id = ?"


def is_gift_card(payment_method_id: str) -> bool:
    """Whether the id is that of a gift card, which every gift card's id says."""
    return "gift_card" in payment_method_id


async def append_payment(
    order_id: str, transaction_type: str, amount: int | float, payment_method_id: str, db: Database
) -> None:
    """Add a ``payment`` or ``refund`` to the end of the order's payment history."""
    payment = {"transaction_type": transaction_type, "amount": amount, "payment_method_id": payment_method_id}
    await db.execute(_APPEND, {"order_id": order_id, **payment})


async def add_to_gift_card(payment_method_id: str, amount: int | float, db: Database) -> None:
    """Add ``amount`` to a gift card's balance and round that to cents; other methods have no balance."""
    if is_gift_card(payment_method_id):
        balance = await db.fetch_val(_BALANCE, [payment_method_id])
        await db.execute(_SET_BALANCE, [round(balance + amount, 2), payment_method_id])
