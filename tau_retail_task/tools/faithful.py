"""The benchmark's answers, byte for byte; a bundle of your own needs none of this module.

In a bundle of your own, a tool returns a dict or rows, and ``Literal`` lists the values of an argument. Here,
tools return JSON with the benchmark's order of keys and escaped letters, an argument is checked later than
its schema says, and the calculator raises Python's errors with Python's words.
"""

import ast
import json
import operator
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from reward_kit.agent import Database, Row, ToolError

CANCEL_REASONS = ["no longer needed", "ordered by mistake"]
CancelReason = Annotated[str, Field(json_schema_extra={"enum": CANCEL_REASONS})]
"""An enum in the schema; the tool checks the value itself, after it has checked the order."""

json_text = json.dumps
"""JSON with escaped letters: a tool that returns a dict gives the model the letters themselves."""


def item_not_found(item_id: str) -> ToolError:
    """Make the error for an item id; with the prefix, which keeps blanks that the id begins with."""
    return ToolError(f"Error: {item_id} not found")


_ADDRESS = ("address1", "address2", "city", "country", "state", "zip")
_REPLACED_ADDRESS = ("address1", "address2", "city", "state", "country", "zip")


def _address(row: Row) -> dict[str, str]:
    """Return the address of a user or an order; one that a tool wrote has its keys in another order."""
    return {name: row[name] for name in (_REPLACED_ADDRESS if row.address_replaced else _ADDRESS)}


_PRODUCT = """
    SELECT items.item_id, items.available, items.price, item_options.name, item_options.value
    FROM items LEFT JOIN item_options ON item_options.item_id = items.item_id
    WHERE items.product_id = ?
    ORDER BY items.place, item_options.place
"""


async def product_text(product_id: str, db: Database) -> str:
    """Return a product with its items as JSON; raise ``ToolError`` for an unknown id."""
    name = await db.fetch_val("SELECT name FROM products WHERE product_id = ?", [product_id])
    if name is None:
        raise ToolError("product not found")
    variants: dict[str, dict[str, Any]] = {}
    for item_id, available, price, option, value in await db.fetch_all(_PRODUCT, [product_id]):
        if item_id not in variants:
            item = {"item_id": item_id, "options": {}, "available": bool(available), "price": price}
            variants[item_id] = item
        if option is not None:
            variants[item_id]["options"][option] = value
    return json_text({"name": name, "product_id": product_id, "variants": variants})


_USER = """
    SELECT first_name, last_name, email,
           address1, address2, city, country, state, zip, address_replaced
    FROM users WHERE user_id = ?
"""
_PAYMENT_METHODS = """
    SELECT payment_method_id, source, brand, last_four, balance
    FROM payment_methods WHERE user_id = ? ORDER BY place
"""
_DETAILS = {"credit_card": ("brand", "last_four"), "gift_card": ("balance",), "paypal": ()}


async def user_text(user_id: str, db: Database) -> str:
    """Return a customer's profile as JSON; raise ``ToolError`` for an unknown id."""
    user = await db.fetch_one(_USER, [user_id])
    if user is None:
        raise ToolError("user not found")
    methods = {
        method.payment_method_id: {
            "source": method.source,
            **{name: method[name] for name in _DETAILS[method.source]},
            "id": method.payment_method_id,
        }
        for method in await db.fetch_all(_PAYMENT_METHODS, [user_id])
    }
    orders = await db.fetch_all("SELECT order_id FROM orders WHERE user_id = ? ORDER BY place", [user_id])
    return json_text(
        {
            "name": {"first_name": user.first_name, "last_name": user.last_name},
            "address": _address(user),
            "email": user.email,
            "payment_methods": methods,
            "orders": [order_id for (order_id,) in orders],
        }
    )


_ORDER = """
    SELECT order_id, user_id, status, cancel_reason,
           address1, address2, city, country, state, zip, address_replaced, tracking_id,
           transaction_type, amount, payment_method_id
    FROM orders LEFT JOIN fulfillments USING (order_id) LEFT JOIN payments USING (order_id)
    WHERE orders.order_id = ? ORDER BY payments.place
"""
_ORDER_ITEMS = """
    SELECT order_items.place, products.name, items.product_id, items.item_id, items.price,
           item_options.name, item_options.value
    FROM order_items
    JOIN items ON items.item_id = order_items.item_id
    JOIN products ON products.product_id = items.product_id
    LEFT JOIN item_options ON item_options.item_id = items.item_id
    WHERE order_items.order_id = ?
    ORDER BY order_items.place, item_options.place
"""
_REQUESTED = "SELECT list, item_id FROM requested_items WHERE order_id = ? ORDER BY list, place"
_RETURN = "SELECT payment_method_id FROM return_requests WHERE order_id = ?"
_EXCHANGE = "SELECT payment_method_id, price_difference FROM exchange_requests WHERE order_id = ?"


async def order_text(order_id: str, db: Database) -> str:
    """Return an order with items, shipment and payments as JSON; raise ``ToolError`` for an unknown id."""
    rows = await db.fetch_all(_ORDER, [order_id])  # one row for each payment
    if not rows:
        raise ToolError("order not found")
    order, items = rows[0], await _items(order_id, db)
    # A shipment holds the whole order, and the items of a shipped order never change.
    shipment = {"tracking_id": [order.tracking_id], "item_ids": [item["item_id"] for item in items]}
    payments = [
        {"transaction_type": kind, "amount": amount, "payment_method_id": method}
        for *_, kind, amount, method in rows
        if kind is not None
    ]
    return json_text(
        {
            "order_id": order_id,
            "user_id": order.user_id,
            "address": _address(order),
            "items": items,
            "fulfillments": [] if order.tracking_id is None else [shipment],
            "status": order.status,
            "payment_history": payments,
            **await _outcome(order, db),
        }
    )


async def _items(order_id: str, db: Database) -> list[dict[str, Any]]:
    items: dict[int, dict[str, Any]] = {}
    rows = await db.fetch_all(_ORDER_ITEMS, [order_id])  # one row for each option
    for place, name, product_id, item_id, price, option, value in rows:
        if place not in items:
            item = {"name": name, "product_id": product_id, "item_id": item_id, "price": price}
            items[place] = {**item, "options": {}}
        if option is not None:
            items[place]["options"][option] = value
    return list(items.values())


async def _outcome(order: Row, db: Database) -> dict[str, Any]:
    """Return the keys that a cancellation, a return or an exchange has added to the order."""
    if order.cancel_reason is not None:
        return {"cancel_reason": order.cancel_reason}
    if order.status not in ("return requested", "exchange requested"):
        return {}
    lists: dict[str, list[str]] = {"return": [], "exchange": [], "exchange for": []}
    for name, item_id in await db.fetch_all(_REQUESTED, [order.order_id]):
        lists[name].append(item_id)
    if order.status == "return requested":
        method = await db.fetch_val(_RETURN, [order.order_id])
        return {"return_items": lists["return"], "return_payment_method_id": method}
    ((method, difference),) = await db.fetch_all(_EXCHANGE, [order.order_id])
    return {
        "exchange_items": lists["exchange"],
        "exchange_new_items": lists["exchange for"],
        "exchange_payment_method_id": method,
        "exchange_price_difference": difference,
    }


MAX_CHARACTERS = 10_000
"""Longest expression that is read."""
MAX_BITS = 1 << 14
"""Size of the largest intermediate whole number, about 4900 digits; floats end at 1024 bits."""
_TOO_LARGE = "int too large to convert to float"
_ALLOWED = frozenset("0123456789+-*/(). ")


def calculated(expression: str) -> str:
    """Compute an expression as Python's ``eval`` does, in bounded time and memory, and round it to cents.

    The benchmark passes a model's text to ``eval``; this function never runs it as code. Raises ``ToolError``
    with the text of the error that CPython 3.11 raises for the expression.
    """
    if not _ALLOWED.issuperset(expression):
        raise ToolError("invalid characters in expression")
    try:
        return str(round(float(_value(_parsed(expression))), 2))
    except (ArithmeticError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        raise ToolError(str(error)) from error


def _parsed(expression: str) -> ast.expr:
    if len(expression) > MAX_CHARACTERS:
        raise ValueError(f"expression is longer than {MAX_CHARACTERS} characters")
    try:
        return ast.parse(expression.lstrip(" "), "<string>", "eval").body  # eval ignores blanks at the start
    except (RecursionError, MemoryError):
        raise RecursionError("maximum recursion depth exceeded during compilation") from None
    except SyntaxError as error:
        if error.msg == "Invalid star expression":  # the text of 3.13
            error.msg = "invalid syntax"
        raise


def _value(tree: ast.expr) -> Any:
    """Evaluate a tree of any depth on a stack: push operands, apply operators to the values on top."""
    waiting: list[tuple[ast.expr, bool]] = [(tree, False)]
    values: list[Any] = []
    while waiting:
        node, operands_done = waiting.pop()
        if operands_done:
            _apply(node, values)
        elif isinstance(node, ast.Constant):
            values.append(node.value)
        else:
            waiting.append((node, True))
            waiting.extend((operand, False) for operand in reversed(_operands(node)))
    return values.pop()


def _operands(node: ast.expr) -> list[ast.expr]:
    """List the parts of ``node`` in the order in which Python evaluates them."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right]
    if isinstance(node, ast.UnaryOp):
        return [node.operand]
    if isinstance(node, ast.Call):
        arguments = [
            argument.value if isinstance(argument, ast.Starred) else argument for argument in node.args
        ]
        return [node.func, *arguments, *(keyword.value for keyword in node.keywords)]
    if isinstance(node, ast.Tuple) and not node.elts:
        return []
    raise SyntaxError("invalid syntax (<string>, line 1)")


def _apply(node: ast.expr, values: list[Any]) -> None:
    """Replace the operands of ``node``, the last of ``values``, by its value."""
    if isinstance(node, ast.BinOp):
        right, left = values.pop(), values.pop()
        values.append(_bounded(_BINARY[type(node.op)](left, right)))
    elif isinstance(node, ast.UnaryOp):
        values.append(_UNARY[type(node.op)](values.pop()))
    elif isinstance(node, ast.Call):
        _call(node, values)
    else:
        values.append(())


def _call(node: ast.Call, values: list[Any]) -> None:
    """Call the value, as in ``(1)(2)``: no value is callable, so Python raises its own error."""
    argument: Any = values.pop() if node.args or node.keywords else None
    function = values.pop()
    if node.keywords:
        values.append(function(**argument))
    elif node.args:
        starred = isinstance(node.args[0], ast.Starred)
        values.append(function(*argument) if starred else function(argument))
    else:
        values.append(function())


def _bounded(value: Any) -> Any:
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise OverflowError(_TOO_LARGE)
    return value


def _power(base: Any, exponent: Any) -> Any:
    whole = isinstance(base, int) and isinstance(exponent, int) and exponent > 0
    # The power has at least this many bits; powers of 0, 1 and -1 stay small.
    if whole and (base.bit_length() - 1) * exponent > MAX_BITS:
        raise OverflowError(_TOO_LARGE)
    return base**exponent


_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Pow: _power,
}
