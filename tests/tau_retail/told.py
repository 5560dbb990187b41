"""Whether a customer's words say which option, address, payment method or reason is meant."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from reachable import Customer

MORE = re.compile(
    r"\b(more|most|great\w*|high\w*|large\w*|big\w*|long(er|est)|bright\w*|maximum)\b", re.IGNORECASE
)
FEWER = re.compile(r"\b(less|least|few\w*|low\w*|small\w*|short\w*|easi\w*|minimum)\b", re.IGNORECASE)
CHEAP = re.compile(r"\b(cheap\w*|lowest price|save\w*|least expensive|cost(s)? the least)\b", re.IGNORECASE)
DEAR = re.compile(r"\b(most expensive|costliest|priciest|costs the most|highest price)\b", re.IGNORECASE)
ANOTHER = re.compile(
    r"\b(same type|other (one|bottle|wireless earbuds)|type (contained|you have))\b", re.IGNORECASE
)
LADDERS = (
    ("low", "medium", "high"),
    ("small", "medium", "large"),
    ("S", "M", "L", "XL", "XXL"),
    ("beginner", "intermediate", "expert"),
    ("1080p", "4K", "5K"),
)
NICKNAMES = {
    "Google Assistant": "Google Home",
    "fantasy": "fancy",
    "2-piece": "two pieces",
    "5 ft": "5 feet",
}
"""What some customers call an option's value."""
NAMED_BY_OPTION = frozenset({"yes", "no", "none", "not resistant"})
"""Values that say no more than that the product has or lacks what the option is called."""
KINDS = {
    "credit_card": r"credit[ _]card|\bcards?\b",
    "gift_card": r"gift[ _]card|\bGC\b",
    "paypal": r"paypal",
}
REASONS = {"ordered by mistake": r"mistake|accident", "no longer needed": r"no longer (be )?need"}


def says(text: str, words: str) -> bool:
    """Whether ``words`` stand in ``text``, in the singular or plural; case and punctuation do not count."""
    stem = _plain(words).removesuffix("s")
    return re.search(rf"(?<!\w){re.escape(stem)}s?(?!\w)", _plain(text)) is not None


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+(?:[.]\d+)?", text.lower().replace("_", " ")))


def option_is_named(text: str, option: str, value: str) -> bool:
    """Whether the text has the value of an option, for those without a name the option itself."""
    return (
        says(text, value)
        or says(text, NICKNAMES.get(value, value))
        or (value in NAMED_BY_OPTION and says(text, option))
    )


def option_is_told(text: str, option: str, value: str, customer: Customer, item_id: str) -> bool:
    """Whether the customer asks for this value of an option in place of the one that ``item_id`` has.

    By name, by pointing at another of their items, or by the direction in which it should differ.
    """
    if option_is_named(text, option, value):
        return True
    product_id = customer.product_of[item_id]
    others = [i for o in customer.orders.values() for i in o["items"] if i["product_id"] == product_id]
    if ANOTHER.search(text) and any(i["options"][option] == value for i in others):
        return True
    old, new = _rank(customer.variant(item_id)["options"][option]), _rank(value)
    if old is None or new is None:
        return False
    return (MORE if new > old else FEWER).search(text) is not None


def _rank(value: str) -> float | None:
    """The place of a value among those of its option, None where they have no order."""
    for ladder in LADDERS:
        if value in ladder:
            return ladder.index(value)
    number = re.match(r"\d+(\.\d+)?", value)
    return float(number[0]) if number else None


def open_options(text: str, customer: Customer, item_id: str, new_item_id: str) -> set[str]:
    """The options in which two items differ and that the customer's words leave open.

    None is if the words name the new item's id, or if of the items that fit the words otherwise it is the
    cheapest or dearest, as they ask.
    """
    if new_item_id in text or item_id == new_item_id:
        return set()
    old, new = customer.variant(item_id)["options"], customer.variant(new_item_id)["options"]
    untold = {
        option
        for option, value in new.items()
        if value != old[option] and not option_is_told(text, option, value, customer, item_id)
    }
    prices = {item["item_id"]: item["price"] for item in fitting(customer, item_id, new_item_id, untold)}
    price = prices[new_item_id]
    if (price == min(prices.values()) and CHEAP.search(text)) or (
        price == max(prices.values()) and DEAR.search(text)
    ):
        return set()
    return untold


def fitting(customer: Customer, item_id: str, new_item_id: str, free: set[str]) -> list[dict[str, Any]]:
    """The other items of the product that can be had and are like the new one but for ``free`` options."""
    wanted = customer.variant(new_item_id)["options"]
    return [
        item
        for item in customer.products[customer.product_of[item_id]]["variants"].values()
        if item["available"]
        and item["item_id"] != item_id
        and all(item["options"][option] == value for option, value in wanted.items() if option not in free)
    ]


def address_is_told(text: str, address: dict[str, Any], known: list[dict[str, str]]) -> bool:
    """Whether each part of an address is in the text, or taken over from one of those ``known``."""
    named = {name for name, value in address.items() if says(text, value) or not value}
    taken_over = [{name for name, value in address.items() if value == old[name]} for old in known]
    return any(named | parts | _implied(address, text) == set(address) for parts in [set(), *taken_over])


def _implied(address: dict[str, Any], text: str) -> set[str]:
    """The only country of the shop, and the state of a city that is named together with a zip code."""
    return {"country"} | ({"state"} if says(text, address["city"]) and says(text, address["zip"]) else set())


def payment_is_told(text: str, method: dict[str, Any], methods: Iterable[str], paid_with: str) -> bool:
    """Whether a payment method is the only one, that of the order, or of a kind that the text names."""
    if len(list(methods)) == 1 or method["id"] == paid_with or method["id"] in text:
        return True
    return re.search(KINDS[method["source"]], text, re.IGNORECASE) is not None


def reason_is_told(text: str, order_id: str, reason: str) -> bool:
    """Whether the words about an order name this reason, or none at all and the order is just not wanted."""
    sentences = re.split(r"(?<=[.;]) ", text)
    about = [place for place, sentence in enumerate(sentences) if order_id in sentence]
    scope = " ".join(part for place in about for part in sentences[place : place + 2]) or text
    named = {name for name, words in REASONS.items() if re.search(words, scope, re.IGNORECASE)}
    return reason in (named or {"no longer needed"})
