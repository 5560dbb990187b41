"""The calculator."""

from __future__ import annotations

from reward_kit.errors import ToolError

from .arithmetic import evaluate

_ALLOWED = frozenset("0123456789+-*/(). ")


async def calculate(expression: str) -> str:
    """Work out an arithmetic expression and round the result to two decimals.

    Args:
        expression: Numbers, the operators + - * /, parentheses and spaces, for example "19.99 * 2 - 4.5".
            No currency signs, percent signs or thousands separators.
    """
    if not _ALLOWED.issuperset(expression):
        raise ToolError("Error: invalid characters in expression")
    try:
        return str(round(float(evaluate(expression)), 2))
    except (ArithmeticError, RecursionError, SyntaxError, TypeError, ValueError) as error:
        raise ToolError(f"Error: {error}") from error
