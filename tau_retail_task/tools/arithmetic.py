"""Arithmetic as Python writes it, worked out without running the text as code.

The text may come from a model, so both the time and the memory that a result takes are bounded.
"""

from __future__ import annotations

import ast
import operator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_CHARACTERS = 10_000
"""The longest text that is read."""
MAX_BITS = 1 << 14
"""The largest whole number on the way to a result, some 4900 digits; a float ends at 1024 bits."""

_TOO_LARGE = "int too large to convert to float"


def evaluate(text: str) -> Any:
    """The value of ``text``, which holds nothing but digits and ``+-*/(). ``.

    That is a number in nearly every case; ``()`` and ``...`` are values too. Raises what Python raises for
    the text, in the words of CPython 3.11; ``OverflowError`` for a whole number past ``MAX_BITS``.
    """
    if len(text) > MAX_CHARACTERS:
        raise ValueError(f"expression is longer than {MAX_CHARACTERS} characters")
    try:
        # As Python's eval does it: what stands before an expression is no indentation.
        tree = ast.parse(text.lstrip(" "), "<string>", "eval")
    except (RecursionError, MemoryError):
        raise RecursionError("maximum recursion depth exceeded during compilation") from None
    except SyntaxError as error:
        if error.msg == "Invalid star expression":  # what 3.13 says where 3.11 has nothing special to say
            error.msg = "invalid syntax"
        raise
    return _value(tree.body)


def _value(tree: ast.expr) -> Any:
    """The value of a tree of any depth: operands are put on a stack, operators take them from there."""
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
    """What is worked out before ``node``, in Python's order."""
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
    """Replace the operands of ``node``, which are on top of ``values``, by its value."""
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
    """Numbers cannot be called, and calling them is how Python gets to say so in its own words."""
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
    # A power has at least so many bits; those of 0, 1 and -1 stay small.
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
