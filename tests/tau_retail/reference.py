"""The retail domain a second time, as one nested dict and plain Python: what the SQL tools are compared with.

Written from the description of the benchmark, not from the tools. A tool takes the data and the arguments and
returns what the model sees; it changes the data in place.
"""

import hashlib
import json
from copy import deepcopy
from typing import Any

Data = dict[str, Any]

ADDRESS_FIELDS = ("address1", "address2", "city", "state", "country", "zip")


class _Private(dict[str, Any]):
    """Entries, each of which is copied when it is first looked up."""

    def __init__(self, shared: Data) -> None:
        super().__init__(shared)
        self._copied: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self._copied:
            self[key] = deepcopy(super().__getitem__(key))
            self._copied.add(key)
        return super().__getitem__(key)


def private(data: Data) -> Data:
    """A copy for calls to change; ``data`` stays as it is."""
    return {kind: _Private(entries) for kind, entries in data.items()}


def state_hash(data: Data) -> str:
    """The verdict of the benchmark's hash: key order does not count, list order and number types do."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def run(data: Data, name: str, arguments: dict[str, Any]) -> str:
    """The observation of a tool call; a refused call leaves the data as they are."""
    try:
        return TOOLS[name](data, **arguments)
    except _RefusedError as error:
        return f"Error: {error}"


def domain_of(db: Any) -> Data:
    """The benchmark's JSON data, read back from the tables through a synchronous view of a database."""

    def rows(sql: str) -> list[dict[str, Any]]:
        return [dict(row) for row in db.execute(sql).mappings()]

    users: Data = {}
    for user in rows("SELECT * FROM users ORDER BY position"):
        users[user["user_id"]] = {
            "name": {"first_name": user["first_name"], "last_name": user["last_name"]},
            "address": _address(user),
            "email": user["email"],
            "payment_methods": {},
            "orders": [],
        }
    for method in rows("SELECT * FROM payment_methods ORDER BY user_id, place"):
        details = {"credit_card": ["brand", "last_four"], "gift_card": ["balance"], "paypal": []}[
            method["source"]
        ]
        users[method["user_id"]]["payment_methods"][method["payment_method_id"]] = {
            "source": method["source"],
            **{detail: method[detail] for detail in details},
            "id": method["payment_method_id"],
        }
    products: Data = {
        product["product_id"]: {"name": product["name"], "product_id": product["product_id"], "variants": {}}
        for product in rows("SELECT * FROM products")
    }
    items: Data = {}
    for item in rows("SELECT * FROM items ORDER BY product_id, place"):
        items[item["item_id"]] = products[item["product_id"]]["variants"][item["item_id"]] = {
            "item_id": item["item_id"],
            "options": {},
            "available": bool(item["available"]),
            "price": item["price"],
        }
        items[item["item_id"]] = {**items[item["item_id"]], "product_id": item["product_id"]}
    for option in rows("SELECT * FROM item_options ORDER BY item_id, place"):
        items[option["item_id"]]["options"][option["name"]] = option["value"]
    orders: Data = {}
    for order in rows("SELECT * FROM orders ORDER BY user_id, place"):
        users[order["user_id"]]["orders"].append(order["order_id"])
        orders[order["order_id"]] = {
            "order_id": order["order_id"],
            "user_id": order["user_id"],
            "address": _address(order),
            "items": [],
            "fulfillments": [],
            "status": order["status"],
            "payment_history": [],
        }
    for held in rows("SELECT * FROM order_items ORDER BY order_id, place"):
        item = items[held["item_id"]]
        orders[held["order_id"]]["items"].append(
            {
                "name": products[item["product_id"]]["name"],
                "product_id": item["product_id"],
                "item_id": held["item_id"],
                "price": item["price"],
                "options": item["options"],
            }
        )
    for payment in rows("SELECT * FROM payments ORDER BY order_id, place"):
        orders[payment["order_id"]]["payment_history"].append(
            {name: payment[name] for name in ("transaction_type", "amount", "payment_method_id")}
        )
    for shipment in rows("SELECT * FROM fulfillments"):
        order = orders[shipment["order_id"]]
        order["fulfillments"].append(
            {
                "tracking_id": [shipment["tracking_id"]],
                "item_ids": [item["item_id"] for item in order["items"]],
            }
        )
    _add_outcomes(orders, rows)
    return json.loads(json.dumps({"orders": orders, "products": products, "users": users}))


def _address(row: dict[str, Any]) -> dict[str, str]:
    seeded = ("address1", "address2", "city", "country", "state", "zip")
    return {name: row[name] for name in (ADDRESS_FIELDS if row["address_replaced"] else seeded)}


def _add_outcomes(orders: Data, rows: Any) -> None:
    requested: dict[tuple[str, str], list[str]] = {}
    for row in rows("SELECT * FROM requested_items ORDER BY order_id, list, place"):
        requested.setdefault((row["order_id"], row["list"]), []).append(row["item_id"])
    returns = {row["order_id"]: row for row in rows("SELECT * FROM return_requests")}
    exchanges = {row["order_id"]: row for row in rows("SELECT * FROM exchange_requests")}
    for row in rows("SELECT * FROM orders"):
        order_id, order = row["order_id"], orders[row["order_id"]]
        if row["cancel_reason"] is not None:
            order["cancel_reason"] = row["cancel_reason"]
        if row["status"] == "exchange requested":
            order["exchange_items"] = requested.get((order_id, "exchange"), [])
            order["exchange_new_items"] = requested.get((order_id, "exchange for"), [])
            order["exchange_payment_method_id"] = exchanges[order_id]["payment_method_id"]
            order["exchange_price_difference"] = exchanges[order_id]["price_difference"]
        if row["status"] == "return requested":
            order["return_items"] = requested.get((order_id, "return"), [])
            order["return_payment_method_id"] = returns[order_id]["payment_method_id"]


class _RefusedError(Exception):
    """What a tool refuses before it has changed anything."""


def _order(data: Data, order_id: str, status: str, done: str) -> Data:
    if order_id not in data["orders"]:
        raise _RefusedError("order not found")
    order: Data = data["orders"][order_id]
    if order["status"] != status:
        raise _RefusedError(f"non-{status} order cannot be {done}")
    return order


def _method(data: Data, order: Data, payment_method_id: str) -> Data:
    methods: Data = data["users"][order["user_id"]]["payment_methods"]
    if payment_method_id not in methods:
        raise _RefusedError("payment method not found")
    return methods[payment_method_id]


def _check_balance(method: Data, amount: float, bought: str) -> None:
    if method["source"] == "gift_card" and method["balance"] < amount:
        raise _RefusedError(f"insufficient gift card balance to pay for the {bought}")


def cancel_pending_order(data: Data, order_id: str, reason: str) -> str:
    order = _order(data, order_id, "pending", "cancelled")
    if reason not in ("no longer needed", "ordered by mistake"):
        raise _RefusedError("invalid reason")
    refunds = []
    for entry in order["payment_history"]:
        refunds.append({**entry, "transaction_type": "refund"})
        if "gift_card" in entry["payment_method_id"]:
            card = _method(data, order, entry["payment_method_id"])
            card["balance"] = round(card["balance"] + entry["amount"], 2)
    order["status"] = "cancelled"
    order["cancel_reason"] = reason
    order["payment_history"] += refunds
    return json.dumps(order)


def _price_difference(data: Data, order: Data, item_ids: list[str], new_item_ids: list[str]) -> float:
    """What the new items cost more, unrounded."""
    held = [item["item_id"] for item in order["items"]]
    for item_id in item_ids:
        if item_ids.count(item_id) > held.count(item_id):
            raise _RefusedError(f"{item_id} not found")
    if len(item_ids) != len(new_item_ids):
        raise _RefusedError("the number of items to be exchanged should match")
    difference: float = 0
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        item = order["items"][held.index(item_id)]
        variant = data["products"][item["product_id"]]["variants"].get(new_item_id)
        if variant is None or not variant["available"]:
            raise _RefusedError(f"new item {new_item_id} not found or available")
        difference += variant["price"] - item["price"]
    return difference


def exchange_delivered_order_items(
    data: Data, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
) -> str:
    order = _order(data, order_id, "delivered", "exchanged")
    difference = round(_price_difference(data, order, item_ids, new_item_ids), 2)
    _check_balance(_method(data, order, payment_method_id), difference, "price difference")
    order["status"] = "exchange requested"
    order["exchange_items"] = sorted(item_ids)
    order["exchange_new_items"] = sorted(new_item_ids)
    order["exchange_payment_method_id"] = payment_method_id
    order["exchange_price_difference"] = difference
    return json.dumps(order)


def modify_pending_order_items(
    data: Data, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
) -> str:
    order = _order(data, order_id, "pending", "modified")
    difference = _price_difference(data, order, item_ids, new_item_ids)
    method = _method(data, order, payment_method_id)
    _check_balance(method, difference, "new item")
    order["payment_history"].append(
        {
            "transaction_type": "payment" if difference > 0 else "refund",
            "amount": abs(difference),
            "payment_method_id": payment_method_id,
        }
    )
    if method["source"] == "gift_card":
        method["balance"] = round(method["balance"] - difference, 2)
    for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
        item = next(item for item in order["items"] if item["item_id"] == item_id)
        variant = data["products"][item["product_id"]]["variants"][new_item_id]
        item.update({name: variant[name] for name in ("item_id", "price", "options")})
    order["status"] = "pending (item modified)"
    return json.dumps(order)


def modify_pending_order_payment(data: Data, order_id: str, payment_method_id: str) -> str:
    order = _order(data, order_id, "pending", "modified")
    new = _method(data, order, payment_method_id)
    history = order["payment_history"]
    if len(history) != 1 or history[0]["transaction_type"] != "payment":
        raise _RefusedError("there should be exactly one payment for a pending order")
    amount, old = history[0]["amount"], history[0]["payment_method_id"]
    if old == payment_method_id:
        raise _RefusedError("the new payment method should be different from the current one")
    _check_balance(new, amount, "order")
    history.append({"transaction_type": "payment", "amount": amount, "payment_method_id": payment_method_id})
    history.append({"transaction_type": "refund", "amount": amount, "payment_method_id": old})
    if new["source"] == "gift_card":
        new["balance"] = round(new["balance"] - amount, 2)
    if "gift_card" in old:
        card = _method(data, order, old)
        card["balance"] = round(card["balance"] + amount, 2)
    return json.dumps(order)


def modify_pending_order_address(data: Data, order_id: str, **address: str) -> str:
    order = _order(data, order_id, "pending", "modified")
    order["address"] = {name: address[name] for name in ADDRESS_FIELDS}
    return json.dumps(order)


def modify_user_address(data: Data, user_id: str, **address: str) -> str:
    if user_id not in data["users"]:
        raise _RefusedError("user not found")
    data["users"][user_id]["address"] = {name: address[name] for name in ADDRESS_FIELDS}
    return json.dumps(data["users"][user_id])


def return_delivered_order_items(
    data: Data, order_id: str, item_ids: list[str], payment_method_id: str
) -> str:
    order = _order(data, order_id, "delivered", "returned")
    _method(data, order, payment_method_id)
    paid_with = order["payment_history"][0]["payment_method_id"]
    if "gift_card" not in payment_method_id and payment_method_id != paid_with:
        raise _RefusedError("payment method should be either the original payment method or a gift card")
    held = [item["item_id"] for item in order["items"]]
    if any(item_ids.count(item_id) > held.count(item_id) for item_id in item_ids):
        raise _RefusedError("some item not found")
    order["status"] = "return requested"
    order["return_items"] = sorted(item_ids)
    order["return_payment_method_id"] = payment_method_id
    return json.dumps(order)


def find_user_id_by_email(data: Data, email: str) -> str:
    for user_id, user in data["users"].items():
        if user["email"].lower() == email.lower():
            return user_id
    raise _RefusedError("user not found")


def find_user_id_by_name_zip(data: Data, first_name: str, last_name: str, **zip_code: str) -> str:
    for user_id, user in data["users"].items():
        same_name = (
            user["name"]["first_name"].lower() == first_name.lower()
            and user["name"]["last_name"].lower() == last_name.lower()
        )
        if same_name and user["address"]["zip"] == zip_code["zip"]:
            return user_id
    raise _RefusedError("user not found")


def _get(collection: str, fault: str) -> Any:
    def get(data: Data, **arguments: str) -> str:
        (key,) = arguments.values()
        return json.dumps(data[collection][key]) if key in data[collection] else f"Error: {fault} not found"

    return get


def list_all_product_types(data: Data) -> str:
    ids = {product["name"]: product["product_id"] for product in data["products"].values()}
    return json.dumps(dict(sorted(ids.items())))


def think(data: Data, thought: str) -> str:
    return ""


def transfer_to_human_agents(data: Data, summary: str) -> str:
    return "Transfer successful"


TOOLS = {
    function.__name__: function
    for function in (
        cancel_pending_order,
        exchange_delivered_order_items,
        find_user_id_by_email,
        find_user_id_by_name_zip,
        list_all_product_types,
        modify_pending_order_address,
        modify_pending_order_items,
        modify_pending_order_payment,
        modify_user_address,
        return_delivered_order_items,
        think,
        transfer_to_human_agents,
    )
}
TOOLS["get_order_details"] = _get("orders", "order")
TOOLS["get_product_details"] = _get("products", "product")
TOOLS["get_user_details"] = _get("users", "user")
