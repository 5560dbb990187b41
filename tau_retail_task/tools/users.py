"""Customers: finding them, their profiles and their default addresses."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.errors import ToolError

from .address import ASSIGNMENTS, COLUMNS, address_record

if TYPE_CHECKING:
    from reward_kit.agent.database import Database, Row

# Names and emails are stored in ASCII, for which NOCASE is what lower() is. What a caller gives may be any
# text, and Python's lower() maps a few letters of other scripts to ASCII, the Kelvin sign to k for example.
_BY_EMAIL = """
    SELECT user_id FROM users WHERE email = ? COLLATE NOCASE ORDER BY position LIMIT 1
"""
_BY_NAME = """
    SELECT user_id FROM users
    WHERE last_name = ? COLLATE NOCASE AND first_name = ? COLLATE NOCASE AND zip = ?
    ORDER BY position LIMIT 1
"""
_USER = f"SELECT first_name, last_name, email, {COLUMNS} FROM users WHERE user_id = ?"  # noqa: S608 - constants
_REPLACE_ADDRESS = f"UPDATE users SET {ASSIGNMENTS} WHERE user_id = :user_id"  # noqa: S608 - constants
_PAYMENT_METHODS = """
    SELECT payment_method_id, source, brand, last_four, balance
    FROM payment_methods WHERE user_id = ? ORDER BY place
"""
_ORDERS = "SELECT order_id FROM orders WHERE user_id = ? ORDER BY place"


async def find_user_id_by_email(email: str, db: Database) -> str:
    """Look up a customer's user id by email address. Try this first; where the customer is not found or
    does not remember the email, use find_user_id_by_name_zip.

    Args:
        email: The customer's email address, such as "jane.doe1234@example.com".
    """
    return _found(await db.fetch_val(_BY_EMAIL, [email.lower()]))


async def find_user_id_by_name_zip(first_name: str, last_name: str, zip: str, db: Database) -> str:  # noqa: A002 - the benchmark's name
    """Look up a customer's user id by first name, last name and zip code, where the email does not help.

    Args:
        first_name: The customer's first name, such as "Jane".
        last_name: The customer's last name, such as "Doe".
        zip: The zip code of the customer's default address, such as "12345".
    """
    return _found(await db.fetch_val(_BY_NAME, [last_name.lower(), first_name.lower(), zip]))


async def get_user_details(user_id: str, db: Database) -> str:
    """Show a customer's profile: name, email, default address, payment methods and the ids of all orders.

    Args:
        user_id: The customer's user id, such as "jane_doe_1234".
    """
    return await _show(user_id, db)


async def modify_user_address(
    user_id: str,
    address1: str,
    address2: str,
    city: str,
    state: str,
    country: str,
    zip: str,  # noqa: A002 - the benchmark's name
    db: Database,
) -> str:
    """Replace the default address in a customer's profile; orders keep theirs. State the new address and
    get the customer's explicit yes first.

    Args:
        user_id: The customer's user id, such as "jane_doe_1234".
        address1: First line of the address: number and street, such as "12 Oak Street".
        address2: Second line of the address, such as "Apt 4"; an empty text if there is none.
        city: The city, such as "Denver".
        state: The state by its abbreviation, such as "CO".
        country: The country, such as "USA".
        zip: The zip code, such as "12345".
    """
    address = {"address1": address1, "address2": address2, "city": city, "state": state}
    await db.execute(_REPLACE_ADDRESS, {**address, "country": country, "zip": zip, "user_id": user_id})
    return await _show(user_id, db)


def _found(user_id: str | None) -> str:
    if user_id is None:
        raise ToolError("Error: user not found")
    return user_id


async def _show(user_id: str, db: Database) -> str:
    user = await db.fetch_one(_USER, [user_id])
    if user is None:
        raise ToolError("Error: user not found")
    profile = {
        "name": {"first_name": user.first_name, "last_name": user.last_name},
        "address": address_record(user),
        "email": user.email,
        "payment_methods": {
            method.payment_method_id: _payment_method(method)
            for method in await db.fetch_all(_PAYMENT_METHODS, [user_id])
        },
        "orders": [order_id for (order_id,) in await db.fetch_all(_ORDERS, [user_id])],
    }
    return json.dumps(profile)


def _payment_method(method: Row) -> dict[str, Any]:
    """Each kind has entries of its own."""
    record: dict[str, Any] = {"source": method.source}
    if method.source == "credit_card":
        record.update(brand=method.brand, last_four=method.last_four)
    elif method.source == "gift_card":
        record["balance"] = method.balance
    record["id"] = method.payment_method_id
    return record
