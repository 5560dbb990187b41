"""What an agent can find out about a task with the tools, starting from the words of the customer alone."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tau_retail_task.tools import R

EMAIL = re.compile(r"[\w.]+@[\w.]*\w")
USER_ID = re.compile(r"\b[a-z]+_[a-z]+_\d{4}\b")
ZIP = re.compile(r"\b\d{5}\b")
NAME = re.compile(r"[A-Z][a-z]+")


class Shop:
    """The reading tools on the seeded data; every answer is remembered, as nothing changes."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._answers: dict[tuple[str, ...], str] = {}

    async def ask(self, name: str, **arguments: str) -> str | None:
        """What a tool answers, None for an error."""
        key = (name, *arguments.values())
        if key not in self._answers:
            self._answers[key] = await R.execute_tool(name, arguments, db=self._db)
        answer = self._answers[key]
        return None if answer.startswith("Error") else answer

    async def look_up(self, name: str, **arguments: str) -> Any:
        """The same for tools that answer in JSON."""
        answer = await self.ask(name, **arguments)
        return None if answer is None else json.loads(answer)


@dataclass
class Customer:
    """A customer who was found, with all that hangs on them.

    ``products`` are those that occur in the orders, by product id; ``product_of`` tells to which of them an
    item belongs.
    """

    user_id: str
    profile: dict[str, Any]
    orders: dict[str, Any]
    products: dict[str, Any]
    product_of: dict[str, str]

    @property
    def addresses(self) -> list[dict[str, str]]:
        """All addresses that the tools show."""
        return [self.profile["address"], *(order["address"] for order in self.orders.values())]

    def variant(self, item_id: str) -> dict[str, Any]:
        """An item with its options, price and availability."""
        variant: dict[str, Any] = self.products[self.product_of[item_id]]["variants"][item_id]
        return variant


async def customers_of(text: str, shop: Shop) -> set[str]:
    """The ids of all users that the words of the customer lead to."""
    found = {await shop.ask("find_user_id_by_email", email=email) for email in EMAIL.findall(text)}
    user_ids = USER_ID.findall(text)
    found |= {user_id for user_id in user_ids if await shop.ask("get_user_details", user_id=user_id)}
    words = re.findall(r"[\w-]+", text)
    names = [pair for pair in pairwise(words) if all(map(NAME.fullmatch, pair))]
    names += [tuple(user_id.split("_")[:2]) for user_id in user_ids]
    for first, last in names:
        for code in ZIP.findall(text):
            by_name = {"first_name": first, "last_name": last, "zip": code}
            found.add(await shop.ask("find_user_id_by_name_zip", **by_name))
    return {user_id for user_id in found if user_id is not None}


async def reach(user_id: str, shop: Shop) -> Customer:
    """Follow a user to the orders, and from these to the products."""
    profile = await shop.look_up("get_user_details", user_id=user_id)
    orders = {
        order_id: await shop.look_up("get_order_details", order_id=order_id) for order_id in profile["orders"]
    }
    product_ids = {item["product_id"] for order in orders.values() for item in order["items"]}
    products = {
        product_id: await shop.look_up("get_product_details", product_id=product_id)
        for product_id in sorted(product_ids)
    }
    product_of = {
        item_id: product_id for product_id, product in products.items() for item_id in product["variants"]
    }
    return Customer(user_id, profile, orders, products, product_of)
