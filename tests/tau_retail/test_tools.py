"""The tools of the bundle as a model sees them.

``test_tools_against_reference.py`` compares every outcome of every tool.
"""

from typing import Any

import pytest

from tau_retail_task.tools import R

# Ivan's: a garden hose and earbuds, delivered, paid by PayPal.
SWAP = {
    "order_id": "#W6893533",
    "item_ids": ["5206946487", "1646531091"],
    "new_item_ids": ["9829827210", "2052249669"],
    "payment_method_id": "paypal_6151711",
}


async def test_exchange_sorts_both_lists_and_keeps_a_negative_zero(call: Any) -> None:
    shown = await call("exchange_delivered_order_items", **SWAP)
    old, new = '["1646531091", "5206946487"]', '["2052249669", "9829827210"]'
    paid = '"exchange_payment_method_id": "paypal_6151711", "exchange_price_difference": -0.0}'
    assert shown.endswith(f'"exchange_items": {old}, "exchange_new_items": {new}, {paid}')
    assert await call("get_order_details", order_id=SWAP["order_id"]) == shown


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
async def test_refused_calls_change_nothing(db: Any, name: str, arguments: Any, status: str) -> None:
    result = await R.call(name, arguments, db=db)
    assert result.status == status
    assert not db.changes()
