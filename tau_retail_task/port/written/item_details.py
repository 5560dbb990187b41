"""Looking up a single item, which only the benchmark's successor offers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from reward_kit.errors import ToolError

from .products import get_product_details

if TYPE_CHECKING:
    from reward_kit.agent.database import Database


async def get_item_details(item_id: str, db: Database) -> str:
    """Show one item of a product: its options, its price and whether it can be had.

    Args:
        item_id: The item's id, ten digits.
    """
    product_id = await db.fetch_val("SELECT product_id FROM items WHERE item_id = ?", [item_id])
    if product_id is None:
        raise ToolError("Error: item not found")
    product = json.loads(await get_product_details(product_id, db))
    return json.dumps(product["variants"][item_id])
