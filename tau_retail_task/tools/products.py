"""Products and the items in which they are sold."""

from reward_kit.agent import Database, ToolRegistry

from . import faithful

R = ToolRegistry("products")


@R.tool
async def get_product_details(product_id: str, db: Database) -> str:
    """Show a product with all of its items: their ids, options, prices and whether they can be had.

    Args:
        product_id: The id of the product, ten digits such as "8310926033". An item's id is something else.
    """
    return await faithful.product_text(product_id, db)


@R.tool
async def list_all_product_types(db: Database) -> str:
    """List the names of all products with their ids. Each product has items with different options."""
    products = await db.fetch_all("SELECT name, product_id FROM products ORDER BY name")
    return faithful.json_text(dict(products))
