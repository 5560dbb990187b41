"""The conversation that every harness plays: ten model turns, eight tool calls, and an outcome to check.

The same for all of them, and known from the number of assistant messages so far. Only the standard library
is used here: each harness imports this in an environment of its own.
"""

from __future__ import annotations

import asyncio
import json

SYSTEM = "You keep the stock of a small shop. Read an item before you change it."
WISHES = ("Please take two of item 3 and two of item 5.", "And two each of items 7 and 9, please.")
"""The user's lines: at the start, and after the first reply."""

REPLIES = {4: "Done: items 3 and 5 are two fewer.", 9: "Done: items 7 and 9 are two fewer, too."}
MODEL_TURNS = 10
TOOL_CALLS = 8
STOCK = {item: 10 * item for item in range(1, 51)}
"""The stock at the start, item by item."""

_CHANGED = (3, 5, 7, 9)
EXPECTED = {**STOCK, **{item: STOCK[item] - 2 for item in _CHANGED}}
"""The stock that the scorers look for."""

READ_TOOL = "read_item"
WRITE_TOOL = "write_item"
INPUT_TOKENS, OUTPUT_TOKENS = 1000, 20
"""The usage that the stub reports for each answer."""


def _tool_turns() -> dict[int, tuple[str, dict[str, int]]]:
    calls: list[tuple[str, dict[str, int]]] = []
    for item in _CHANGED:
        calls.append((READ_TOOL, {"item_id": item}))
        calls.append((WRITE_TOOL, {"item_id": item, "quantity": EXPECTED[item]}))
    turns = [turn for turn in range(MODEL_TURNS) if turn not in REPLIES]
    return dict(zip(turns, calls, strict=True))


CALLS = _tool_turns()
"""Turn number to the tool and the arguments that the model calls there."""


class Counter:
    """Counts the answers that the stub gave and the tool calls that reached the tools."""

    def __init__(self) -> None:
        self.model_turns = 0
        self.tool_calls = 0

    def check(self, passed: int, rollouts: int) -> None:
        """Begin anew; raise ``RuntimeError`` if not all was done: its times would mean nothing."""
        found = (self.model_turns, self.tool_calls, passed)
        wanted = (rollouts * MODEL_TURNS, rollouts * TOOL_CALLS, rollouts)
        self.model_turns = self.tool_calls = 0
        if found != wanted:
            raise RuntimeError(f"model turns, tool calls, passed rollouts: {found} instead of {wanted}")


COUNTER = Counter()


def read_stock(stock: dict[int, int], item_id: int) -> dict[str, int]:
    """Do the work of the reading tool for a sample whose stock is a dict."""
    COUNTER.tool_calls += 1
    return {"id": item_id, "quantity": stock[item_id]}


def write_stock(stock: dict[int, int], item_id: int, quantity: int) -> dict[str, int]:
    """Do the work of the writing tool."""
    COUNTER.tool_calls += 1
    stock[item_id] = quantity
    return {"id": item_id, "quantity": quantity}


async def next_turn(turn: int, delay: float) -> tuple[str | None, tuple[str, str] | None]:
    """The stub's answer after ``delay`` seconds: a text, or the name of a tool and its arguments as JSON."""
    await asyncio.sleep(delay)
    COUNTER.model_turns += 1
    if turn in REPLIES:
        return REPLIES[turn], None
    name, arguments = CALLS[turn]
    return None, (name, json.dumps(arguments))
