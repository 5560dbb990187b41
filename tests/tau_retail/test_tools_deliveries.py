"""Returning and exchanging items of delivered orders."""

from __future__ import annotations

import json
from typing import Any

import pytest

# Harper's: five items, two of them the same fleece jacket, paid by PayPal.
JACKETS = "#W1840144"
JACKET, LAMP = "8590708195", "8384507844"
PAYPAL, CREDIT = "paypal_2306935", "credit_card_3240550"
# Ivan's: a garden hose and earbuds, paid by PayPal.
HOSE_AND_EARBUDS = "#W6893533"
SWAP = {
    "order_id": HOSE_AND_EARBUDS,
    "item_ids": ["5206946487", "1646531091"],
    "new_item_ids": ["9829827210", "2052249669"],
    "payment_method_id": "paypal_6151711",
}


async def test_exchange_adds_sorted_lists_that_lose_the_pairing(call: Any) -> None:
    shown = await call("exchange_delivered_order_items", **SWAP)
    assert shown.endswith(
        '"exchange_items": ["1646531091", "5206946487"], '
        '"exchange_new_items": ["2052249669", "9829827210"], '
        '"exchange_payment_method_id": "paypal_6151711", "exchange_price_difference": -0.0}'
    )
    order = json.loads(shown)
    assert order["status"] == "exchange requested"
    assert [item["item_id"] for item in order["items"]] == SWAP["item_ids"]
    assert len(order["payment_history"]) == 1


async def test_noise_below_zero_stays_a_negative_zero_when_it_is_looked_up_again(call: Any) -> None:
    shown = await call("exchange_delivered_order_items", **SWAP)
    assert await call("get_order_details", order_id=HOSE_AND_EARBUDS) == shown


async def test_exchange_of_nothing_has_a_whole_zero_and_empty_lists(call: Any) -> None:
    nothing = {**SWAP, "item_ids": [], "new_item_ids": []}
    shown = await call("exchange_delivered_order_items", **nothing)
    assert '"exchange_items": [], "exchange_new_items": [], ' in shown
    assert shown.endswith('"exchange_price_difference": 0}')


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"order_id": "W6893533"}, "order not found"),
        ({"order_id": "#W1080318"}, "non-delivered order cannot be exchanged"),
        ({"item_ids": ["x", "5206946487"], "new_item_ids": []}, "x not found"),
        ({"new_item_ids": []}, "the number of items to be exchanged should match"),
        ({"new_item_ids": ["2052249669", "9829827210"]}, "new item 2052249669 not found or available"),
        ({"payment_method_id": "gift_card_1725971"}, "payment method not found"),
    ],
)
async def test_exchange_is_refused_by_the_first_check_that_fails(
    call: Any, db: Any, changed: dict[str, Any], refusal: str
) -> None:
    assert await call("exchange_delivered_order_items", **{**SWAP, **changed}) == f"Error: {refusal}"
    assert not db.changes()


async def test_return_adds_the_sorted_items_and_moves_no_money(call: Any) -> None:
    before = json.loads(await call("get_order_details", order_id=JACKETS))
    items = [JACKET, LAMP, JACKET]
    shown = await call(
        "return_delivered_order_items", order_id=JACKETS, item_ids=items, payment_method_id=PAYPAL
    )
    order = json.loads(shown)
    assert list(order) == [*before, "return_items", "return_payment_method_id"]
    assert order["return_items"] == sorted(items)
    assert (order["status"], order["return_payment_method_id"]) == ("return requested", PAYPAL)
    assert order["payment_history"] == before["payment_history"]


async def test_return_of_nothing_is_possible(call: Any) -> None:
    shown = await call(
        "return_delivered_order_items", order_id=JACKETS, item_ids=[], payment_method_id=PAYPAL
    )
    assert json.loads(shown)["return_items"] == []


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"order_id": "#W0"}, "order not found"),
        ({"order_id": "#W1080318"}, "non-delivered order cannot be returned"),
        ({"payment_method_id": "x", "item_ids": ["x"]}, "payment method not found"),
        (
            {"payment_method_id": CREDIT, "item_ids": ["x"]},
            "payment method should be either the original payment method or a gift card",
        ),
        ({"item_ids": [JACKET] * 3}, "some item not found"),
    ],
)
async def test_return_checks_the_payment_method_before_the_items(
    call: Any, db: Any, changed: dict[str, Any], refusal: str
) -> None:
    possible = {"order_id": JACKETS, "item_ids": [JACKET], "payment_method_id": PAYPAL}
    assert await call("return_delivered_order_items", **{**possible, **changed}) == f"Error: {refusal}"
    assert not db.changes()


async def test_an_order_is_returned_or_exchanged_only_once(call: Any) -> None:
    await call(
        "return_delivered_order_items",
        order_id=HOSE_AND_EARBUDS,
        item_ids=[],
        payment_method_id="paypal_6151711",
    )
    assert (
        await call("exchange_delivered_order_items", **SWAP)
        == "Error: non-delivered order cannot be exchanged"
    )
