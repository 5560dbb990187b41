"""Quirks of the benchmark's tools that the bundle keeps, and the tools as a model sees them.

``test_tools_against_reference.py`` compares every outcome of every tool.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tau_retail_task.tools import R

# Omar's: paid by credit card, and his gift card with 91 dollars could pay it.
SHIRT = "#W1080318"
# Omar's: five items, two of them tea kettles, paid with the gift card.
KETTLES = "#W8557584"
GLASS, CERAMIC, STEEL = "9747045638", "8293778132", "9647374798"
CARD, CREDIT = "gift_card_3749819", "credit_card_3577130"
# Ivan's: a garden hose and earbuds, delivered, paid by PayPal.
SWAP = {
    "order_id": "#W6893533",
    "item_ids": ["5206946487", "1646531091"],
    "new_item_ids": ["9829827210", "2052249669"],
    "payment_method_id": "paypal_6151711",
}
ADDRESS = dict.fromkeys(["address1", "address2", "city", "state", "country", "zip"], "x")


async def balance(call: Any) -> str:
    """Omar's balance as it is written in his profile."""
    profile = json.loads(await call("get_user_details", user_id="omar_kim_3528"))
    return json.dumps(profile["payment_methods"][CARD]["balance"])


async def change(call: Any, old: list[str], new: list[str], method: str = CARD) -> str:
    """Change items of the order with the kettles."""
    arguments = {"item_ids": old, "new_item_ids": new, "payment_method_id": method}
    return await call("modify_pending_order_items", order_id=KETTLES, **arguments)


async def test_exchange_sorts_both_lists_and_keeps_a_negative_zero(call: Any) -> None:
    shown = await call("exchange_delivered_order_items", **SWAP)
    assert shown.endswith(
        '"exchange_items": ["1646531091", "5206946487"], '
        '"exchange_new_items": ["2052249669", "9829827210"], '
        '"exchange_payment_method_id": "paypal_6151711", "exchange_price_difference": -0.0}'
    )
    assert await call("get_order_details", order_id=SWAP["order_id"]) == shown


@pytest.mark.parametrize(
    "text", ["", " ", "Zoë", "\N{GRINNING FACE}", 'a "b"', "a\0b", "it's", "\\u00e9", "1e5"]
)
async def test_address_fields_come_back_as_given_in_escaped_json(call: Any, text: str) -> None:
    shown = await call("modify_pending_order_address", order_id=SHIRT, **dict.fromkeys(ADDRESS, text))
    assert f'"zip": {json.dumps(text)}}}' in shown
    assert shown.isascii()


@pytest.mark.parametrize(
    ("old", "new", "entry", "left"),
    [
        ([GLASS], [CERAMIC], '{"transaction_type": "payment", "amount": 6.609999999999999, ', "84.39"),
        ([GLASS], [GLASS], '{"transaction_type": "refund", "amount": 0.0, ', "91.0"),
        ([], [], '{"transaction_type": "refund", "amount": 0, ', "91"),
    ],
)
async def test_amounts_keep_every_bit_and_their_form(
    call: Any, old: list[str], new: list[str], entry: str, left: str
) -> None:
    assert entry in await change(call, old, new)
    assert await balance(call) == left


@pytest.mark.parametrize(
    ("old", "new", "held"),
    [
        ([GLASS, CERAMIC], [CERAMIC, GLASS], [GLASS, CERAMIC]),  # both steps hit the first kettle
        ([GLASS, CERAMIC], [CERAMIC, STEEL], [STEEL, CERAMIC]),
        ([CERAMIC, GLASS], [STEEL, CERAMIC], [CERAMIC, STEEL]),
    ],
)
async def test_each_pair_sees_the_changes_of_the_pairs_before_it(
    call: Any, old: list[str], new: list[str], held: list[str]
) -> None:
    items = json.loads(await change(call, old, new, CREDIT))["items"]
    assert [item["item_id"] for item in items if item["name"] == "Tea Kettle"] == held


async def test_search_by_zip_follows_the_address_and_finds_the_first_of_two_users(call: Any) -> None:
    name = {"first_name": "Yusuf", "last_name": "\N{KELVIN SIGN}han"}  # lower() makes a k of it
    before = await call("find_user_id_by_name_zip", **name, zip="75313")
    await call("modify_user_address", **{**ADDRESS, "user_id": "yusuf_khan_2015", "zip": "75313"})
    after = await call("find_user_id_by_name_zip", **name, zip="75313")
    gone = await call("find_user_id_by_name_zip", **name, zip="78242")
    assert (before, after, gone) == ("yusuf_khan_7091", "yusuf_khan_2015", "Error: user not found")


async def test_transfer_ends_the_rollout_and_nothing_else_does(db: Any) -> None:
    result = await R.call("transfer_to_human_agents", {"summary": "?"}, db=db)
    assert (result.content, result.terminal) == ("Transfer successful", True)
    assert [name for name, tool in R.tools.items() if tool.terminal] == ["transfer_to_human_agents"]


def test_sixteen_described_tools_are_offered_in_alphabetical_order() -> None:
    names = [tool["function"]["name"] for tool in R.get_openai_tools()]
    assert (len(names), names) == (16, sorted(names))
    for tool in R.tools.values():
        properties = tool.schema["properties"]
        assert tool.schema["required"] == list(properties)
        assert all(schema["description"] for schema in properties.values())
    reason = R.tools["cancel_pending_order"].schema["properties"]["reason"]
    assert reason["enum"] == ["no longer needed", "ordered by mistake"]


@pytest.mark.parametrize(
    ("name", "arguments", "status"),
    [
        ("cancel_pending_order", {"order_id": "#W1080318", "reason": None}, "invalid_arguments"),
        ("get_user_details", {"user_id": "x", "data": {}}, "invalid_arguments"),
        ("get_user_details", '{"user_id": "omar', "invalid_arguments"),
        ("modify_user_address", {"user_id": "omar_kim_3528", "zip": 12345}, "invalid_arguments"),
        ("get_order_details", {"order_id": "?"}, "refused"),
        ("calculate", {"expression": "1/0"}, "refused"),
    ],
)
async def test_refused_calls_change_nothing_and_say_so(
    db: Any, name: str, arguments: Any, status: str
) -> None:
    result = await R.call(name, arguments, db=db)
    assert result.status == status
    assert not db.changes()
