"""The SQL tools and a plain in-memory model of the benchmark say and do the same, whatever is called."""

import json
import random
from collections import Counter
from typing import Any

import pytest
from call_sequences import CallMaker
from reference import domain_of, private, run
from thorough import often

from tau_retail_task.tools import R

SEQUENCES = often(12, 4)
CALLS = 30

SWAP_FAULTS = [
    "order not found",
    "ID not found",
    "the number of items to be exchanged should match",
    "new item ID not found or available",
    "payment method not found",
]
FAULTS = {
    "cancel_pending_order": ["order not found", "non-pending order cannot be cancelled", "invalid reason"],
    "exchange_delivered_order_items": [
        *SWAP_FAULTS,
        "insufficient gift card balance to pay for the price difference",
    ],
    "find_user_id_by_name_zip": ["user not found"],
    "find_user_id_by_email": ["user not found"],
    "modify_pending_order_address": ["order not found"],
    "modify_pending_order_items": [
        *SWAP_FAULTS,
        "non-pending order cannot be modified",
        "insufficient gift card balance to pay for the new item",
    ],
    "modify_pending_order_payment": [
        "there should be exactly one payment for a pending order",
        "the new payment method should be different from the current one",
        "insufficient gift card balance to pay for the order",
    ],
    "modify_user_address": ["user not found"],
    "return_delivered_order_items": [
        "some item not found",
        "payment method should be either the original payment method or a gift card",
    ],
}
EXPECTED_OUTCOMES = [
    *(f"{name}: ok" for name in FAULTS),
    *(f"{name}: Error: {fault}" for name, faults in FAULTS.items() for fault in faults),
]


@pytest.mark.parametrize("seed", range(8))
async def test_every_observation_and_every_final_state_is_the_same(
    base: Any, seeded_data: Any, seed: int
) -> None:
    rng = random.Random(seed)
    for number in range(SEQUENCES):
        data = private(seeded_data)
        calls = CallMaker(rng, data)
        with base.fork() as db:
            for _ in range(CALLS):
                name, arguments = calls.call()
                expected = run(data, name, json.loads(json.dumps(arguments)))
                assert await R.execute_tool(name, arguments, db=db) == expected, (name, arguments)
            for order_id in dict.fromkeys(calls.orders):
                shown = await R.execute_tool("get_order_details", {"order_id": order_id}, db=db)
                assert shown == json.dumps(data["orders"][order_id])
            for user_id in dict.fromkeys(calls.users):
                shown = await R.execute_tool("get_user_details", {"user_id": user_id}, db=db)
                assert shown == json.dumps(data["users"][user_id])
            if number == 0:
                assert _ordered(domain_of(db.read_only())) == _ordered(data)


async def test_the_sequences_reach_all_that_the_tools_can_say(seeded_data: Any) -> None:
    """The comparison is worth as much as what it meets: all outcomes of all tools, and the odd numbers."""
    rng = random.Random(0)
    outcomes: Counter[str] = Counter()
    numbers: set[str] = set()
    for _ in range(50):
        data = private(seeded_data)
        calls = CallMaker(rng, data)
        for _ in range(CALLS):
            name, arguments = calls.call()
            said = run(data, name, arguments)
            quoted = [*arguments.get("item_ids", []), *arguments.get("new_item_ids", [])]
            for part in sorted(quoted, key=len, reverse=True):
                if said.startswith(("Error: new item", f"Error: {part} not")):
                    said = said.replace(part, "ID", 1) if part else said
            outcomes[f"{name}: {said if said.startswith('Error') else 'ok'}"] += 1
            if "exchange_price_difference" in said:
                numbers.add(repr(json.loads(said)["exchange_price_difference"]))
    for outcome in EXPECTED_OUTCOMES:
        assert outcomes[outcome], outcome
    assert {"0", "0.0"} <= numbers


def _ordered(data: dict[str, Any]) -> dict[str, str]:
    """Each object as JSON text with its own key order; the collections themselves have none here."""
    return {key: json.dumps(value) for collection in data.values() for key, value in collection.items()}
