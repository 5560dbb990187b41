"""The lookup of a single item, which only the benchmark's successor offers."""

import json

from reward_kit.agent import Database, ToolError, ToolRegistry

from .faithful import json_text, product_text

R = ToolRegistry("item_details")


@R.tool
async def get_item_details(item_id: str, db: Database) -> str:
    """Show one item of a product: its options, its price and whether it can be had.

    Args:
        item_id: The item's id, ten digits.
    """
    product_id = await db.fetch_val("SELECT product_id FROM items WHERE item_id = ?", [item_id])
    if product_id is None:
        raise ToolError("item not found")
    product = json.loads(await product_text(product_id, db))
    return json_text(product["variants"][item_id])
