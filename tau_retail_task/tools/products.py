"""The catalogue: products, and the items that they come in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.errors import ToolError

if TYPE_CHECKING:
    from reward_kit.agent.database import Database

_ITEMS = """
    SELECT items.item_id, items.available, items.price, item_options.name, item_options.value
    FROM items LEFT JOIN item_options ON item_options.item_id = items.item_id
    WHERE items.product_id = ?
    ORDER BY items.place, item_options.place
"""


async def get_product_details(product_id: str, db: Database) -> str:
    """Show a product with all of its items: their ids, options, prices and whether they can be had.

    Args:
        product_id: The id of the product, ten digits such as "8310926033". An item's id is something else.
    """
    product = await db.fetch_one("SELECT name FROM products WHERE product_id = ?", [product_id])
    if product is None:
        raise ToolError("Error: product not found")
    variants: dict[str, dict[str, Any]] = {}
    for item_id, available, price, option, value in await db.fetch_all(_ITEMS, [product_id]):
        if item_id not in variants:
            variants[item_id] = {
                "item_id": item_id,
                "options": {},
                "available": bool(available),
                "price": price,
            }
        if option is not None:
            variants[item_id]["options"][option] = value
    return json.dumps({"name": product.name, "product_id": product_id, "variants": variants})


async def list_all_product_types(db: Database) -> str:
    """List the names of all products with their ids. Each product has items with different options."""
    products = await db.fetch_all("SELECT name, product_id FROM products ORDER BY name")
    return json.dumps(dict(products))
