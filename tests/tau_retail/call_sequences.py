"""Random sequences of tool calls: mostly sensible, often almost right, sometimes odd."""

import random
from typing import Any

Call = tuple[str, dict[str, Any]]

_SMILE = "\N{GRINNING FACE}"
_ODD = ["", " ", "x", "#W0000000", "6469567736 ", " lead", "a\0b", "é", _SMILE, "'", '"', "\\n", "\n"]
_STREETS = ["1 Elm Street", "", "Zoë's Straße 5", _SMILE, "a\0b", 'say "hi"', "tab\there", "x" * 3000]


class CallMaker:
    """Calls about a few users and their orders, so that calls meet what earlier ones left behind."""

    def __init__(self, rng: random.Random, data: dict[str, Any]) -> None:
        self.rng = rng
        self.data = data
        self.users = self._choose_users()
        self.orders = [order for user in self.users for order in data["users"][user]["orders"]]
        self.available = [
            (item["item_id"], product["product_id"])
            for product in data["products"].values()
            for item in product["variants"].values()
        ]

    def _choose_users(self) -> list[str]:
        """One with a gift card and orders, one of the same name as another, and that one."""
        users = self.data["users"]
        with_card = [
            user_id
            for user_id, user in users.items()
            if user["orders"] and any("gift_card" in method for method in user["payment_methods"])
        ]
        first = self.rng.choice(with_card)
        names: dict[tuple[str, str], list[str]] = {}
        for user_id, user in users.items():
            names.setdefault(tuple(user["name"].values()), []).append(user_id)
        namesakes = self.rng.choice([group for group in names.values() if len(group) > 1])
        return list(dict.fromkeys([first, *namesakes[:2]]))

    def call(self) -> Call:
        """The next call, made for the present state of the data."""
        makers = [
            (3, self.cancel),
            (6, self.exchange),
            (8, self.modify_items),
            (5, self.modify_payment),
            (3, self.modify_order_address),
            (3, self.modify_user_address),
            (6, self.return_items),
            (2, self.find),
            (2, self.look_up),
            (1, self.talk),
        ]
        weights, makers_only = zip(*makers, strict=True)
        return self.rng.choices(makers_only, weights)[0]()

    def cancel(self) -> Call:
        reason = self.rng.choice(["no longer needed", "ordered by mistake", "no longer needed ", "other"])
        return "cancel_pending_order", {"order_id": self.order("pending"), "reason": reason}

    def exchange(self) -> Call:
        return "exchange_delivered_order_items", self.swap("delivered")

    def modify_items(self) -> Call:
        return "modify_pending_order_items", self.swap("pending")

    def modify_payment(self) -> Call:
        order_id = self.order("pending")
        method = self.method(order_id)
        return "modify_pending_order_payment", {"order_id": order_id, "payment_method_id": method}

    def return_items(self) -> Call:
        order_id = self.order("delivered")
        items, method = self.items(order_id), self.method(order_id)
        arguments = {"order_id": order_id, "item_ids": items, "payment_method_id": method}
        return "return_delivered_order_items", arguments

    def modify_order_address(self) -> Call:
        return "modify_pending_order_address", {"order_id": self.order("pending"), **self.address()}

    def modify_user_address(self) -> Call:
        user_id = self.rng.choice([*self.users, *self.users, "nobody_0000"])
        return "modify_user_address", {"user_id": user_id, **self.address()}

    def find(self) -> Call:
        user = self.data["users"][self.rng.choice(self.users)]
        spell = self.rng.choice([str, str.upper, str.lower, _with_kelvin_signs, str.strip, _reversed])
        if self.rng.random() < 0.5:
            return "find_user_id_by_email", {"email": spell(user["email"])}
        names = {name: spell(value) for name, value in user["name"].items()}
        zip_code = self.rng.choice([user["address"]["zip"], user["address"]["zip"], "00000", ""])
        return "find_user_id_by_name_zip", {**names, "zip": zip_code}

    def look_up(self) -> Call:
        product = self.rng.choice([*self.data["products"], "1", *_ODD])
        user = self.rng.choice([*self.users, *_ODD])
        calls: list[Call] = [
            ("get_product_details", {"product_id": product}),
            ("get_user_details", {"user_id": user}),
            ("get_order_details", {"order_id": self.order("pending")}),
            ("list_all_product_types", {}),
        ]
        return self.rng.choice(calls)

    def talk(self) -> Call:
        thought = {"thought": self.rng.choice(_ODD)}
        return self.rng.choice([("think", thought), ("transfer_to_human_agents", {"summary": "x"})])

    def order(self, status: str) -> str:
        fitting = [order for order in self.orders if self.data["orders"][order]["status"] == status]
        if fitting and self.rng.random() < 0.8:
            return self.rng.choice(fitting)
        if self.rng.random() < 0.5:
            return self.rng.choice([*self.orders, *_ODD])
        # Rarely a user's own order is in the state that is wanted, so that of somebody else has to do.
        others = [key for key, order in self.data["orders"].items() if order["status"] == status]
        order_id = self.rng.choice(others)
        self.orders.append(order_id)
        self.users.append(self.data["orders"][order_id]["user_id"])
        return order_id

    def items(self, order_id: str) -> list[str]:
        held = [item["item_id"] for item in self.data["orders"].get(order_id, {"items": []})["items"]]
        chosen = self.rng.sample(held, self.rng.randint(0, len(held)))
        dice = self.rng.random()
        if dice < 0.05:
            chosen.append(self.rng.choice(_ODD))
        elif dice < 0.1 and chosen:
            chosen.append(chosen[0])
        return chosen

    def swap(self, status: str) -> dict[str, Any]:
        order_id = self.order(status)
        item_ids = self.items(order_id)
        product_of = dict(self.available)
        new_item_ids = [self.new_item(product_of.get(item_id), item_id) for item_id in item_ids]
        dice = self.rng.random()
        if dice < 0.15:
            new_item_ids = item_ids[1:] + item_ids[:1]  # only fits where the items are of one product
        elif dice < 0.2:
            new_item_ids = new_item_ids[1:]
        elif dice < 0.25:
            new_item_ids.append("1")
        items = {"item_ids": item_ids, "new_item_ids": new_item_ids}
        return {"order_id": order_id, **items, "payment_method_id": self.method(order_id)}

    def new_item(self, product_id: str | None, item_id: str) -> str:
        if product_id is None or self.rng.random() < 0.03:
            return self.rng.choice([*_ODD, self.rng.choice(self.available)[0]])
        if self.rng.random() < 0.1:
            return item_id
        variants = self.data["products"][product_id]["variants"].values()
        fitting = [variant["item_id"] for variant in variants if variant["available"]]
        if not fitting or self.rng.random() < 0.05:
            fitting = [variant["item_id"] for variant in variants]
        return self.rng.choice(fitting)

    def method(self, order_id: str) -> str:
        order = self.data["orders"].get(order_id)
        if order is None or self.rng.random() < 0.1:
            return self.rng.choice([*_ODD, "gift_card_0", "paypal_0"])
        return self.rng.choice(list(self.data["users"][order["user_id"]]["payment_methods"]))

    def address(self) -> dict[str, str]:
        other = self.data["users"][self.rng.choice(self.users)]["address"]
        if self.rng.random() < 0.3:
            return dict(other)
        names = ("address1", "address2", "city", "state", "country")
        address = {name: self.rng.choice(_STREETS) for name in names}
        return {**address, "zip": self.rng.choice([other["zip"], other["zip"], "01234", "", "1e3"])}


def _with_kelvin_signs(text: str) -> str:
    """Letters that are no ASCII, yet lower() makes a k of them."""
    return text.replace("k", "\N{KELVIN SIGN}")


def _reversed(text: str) -> str:
    return text[::-1]
