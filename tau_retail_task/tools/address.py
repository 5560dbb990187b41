"""Postal addresses, which users and orders have as columns of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_kit.agent.database import Row

_AS_SEEDED = ("address1", "address2", "city", "country", "state", "zip")
_AS_WRITTEN = ("address1", "address2", "city", "state", "country", "zip")

COLUMNS = ", ".join((*_AS_SEEDED, "address_replaced"))
"""The columns that ``address_record`` needs."""
ASSIGNMENTS = ", ".join([*(f"{name} = :{name}" for name in _AS_WRITTEN), "address_replaced = 1"])
"""What stands after SET when a tool replaces an address."""


def address_record(row: Row) -> dict[str, str]:
    """The address in ``row`` as tools show it: the state stands before the country once a tool wrote it."""
    return {name: row[name] for name in (_AS_WRITTEN if row["address_replaced"] else _AS_SEEDED)}
