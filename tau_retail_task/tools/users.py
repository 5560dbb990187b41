"""Customers: finding them, showing their profiles, replacing their default addresses."""

from reward_kit.agent import Database, ToolError, ToolRegistry

from . import faithful

R = ToolRegistry("users")

# NOCASE ignores the case of ASCII letters; the tools also call lower(), which turns the Kelvin sign into a k.
_BY_EMAIL = "SELECT user_id FROM users WHERE email = ? COLLATE NOCASE ORDER BY position LIMIT 1"
_BY_NAME = """
    SELECT user_id FROM users
    WHERE last_name = ? COLLATE NOCASE AND first_name = ? COLLATE NOCASE AND zip = ?
    ORDER BY position LIMIT 1
"""
_REPLACE_ADDRESS = """
    UPDATE users
    SET address1 = ?, address2 = ?, city = ?, state = ?, country = ?, zip = ?, address_replaced = 1
    WHERE user_id = ?
"""


@R.tool
async def find_user_id_by_email(email: str, db: Database) -> str:
    """Look up a customer's user id by email address. Try this first; where the customer is not found or
    does not remember the email, use find_user_id_by_name_zip.

    Args:
        email: The customer's email address, such as "jane.doe1234@example.com".
    """
    return _found(await db.fetch_val(_BY_EMAIL, [email.lower()]))


@R.tool
async def find_user_id_by_name_zip(first_name: str, last_name: str, zip: str, db: Database) -> str:
    """Look up a customer's user id by first name, last name and zip code, where the email does not help.

    Args:
        first_name: The customer's first name, such as "Jane".
        last_name: The customer's last name, such as "Doe".
        zip: The zip code of the customer's default address, such as "12345".
    """
    return _found(await db.fetch_val(_BY_NAME, [last_name.lower(), first_name.lower(), zip]))


@R.tool
async def get_user_details(user_id: str, db: Database) -> str:
    """Show a customer's profile: name, email, default address, payment methods and the ids of all orders.

    Args:
        user_id: The customer's user id, such as "jane_doe_1234".
    """
    return await faithful.user_text(user_id, db)


@R.tool
async def modify_user_address(
    user_id: str,
    address1: str,
    address2: str,
    city: str,
    state: str,
    country: str,
    zip: str,
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
    await db.execute(_REPLACE_ADDRESS, [address1, address2, city, state, country, zip, user_id])
    return await faithful.user_text(user_id, db)


def _found(user_id: str | None) -> str:
    if user_id is None:
        raise ToolError("user not found")
    return user_id
