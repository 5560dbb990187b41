"""Cancelling and modifying pending orders, quirks of the benchmark included."""

from __future__ import annotations

import json
from typing import Any

import pytest

# Omar's: paid by credit card, and his gift card with 91 dollars could pay it.
SHIRT = "#W1080318"
# Omar's: five items, two of them tea kettles, paid with the gift card.
KETTLES = "#W8557584"
GLASS, CERAMIC, STEEL = "9747045638", "8293778132", "9647374798"
CARD, CREDIT = "gift_card_3749819", "credit_card_3577130"
ADDRESS = {
    "address1": "1 Elm Street",
    "address2": "",
    "city": "Boston",
    "state": "MA",
    "country": "USA",
    "zip": "02101",
}


async def balance(call: Any) -> str:
    """Omar's balance as it is written in his profile."""
    profile = json.loads(await call("get_user_details", user_id="omar_kim_3528"))
    return json.dumps(profile["payment_methods"][CARD]["balance"])


async def test_cancelling_refunds_and_adds_the_reason_at_the_end(call: Any) -> None:
    before = json.loads(await call("get_order_details", order_id=SHIRT))
    order = json.loads(await call("cancel_pending_order", order_id=SHIRT, reason="ordered by mistake"))
    assert list(order) == [*before, "cancel_reason"]
    assert (order["status"], order["cancel_reason"]) == ("cancelled", "ordered by mistake")
    assert order["payment_history"][1] == {
        "transaction_type": "refund",
        "amount": 53.43,
        "payment_method_id": CREDIT,
    }
    assert await balance(call) == "91"


async def test_cancelling_checks_the_order_then_its_status_then_the_reason(call: Any) -> None:
    assert await call("cancel_pending_order", order_id="W1080318", reason="?") == "Error: order not found"
    refusal = await call("cancel_pending_order", order_id="#W2611340", reason="?")
    assert refusal == "Error: non-pending order cannot be cancelled"
    assert await call("cancel_pending_order", order_id=SHIRT, reason="?") == "Error: invalid reason"


async def test_the_reasons_are_shown_to_the_model_as_an_enum() -> None:
    from tau_retail_task.tools import R

    reason = R.tools["cancel_pending_order"].schema["properties"]["reason"]
    assert reason["enum"] == ["no longer needed", "ordered by mistake"]


async def test_cancelling_after_a_change_of_payment_refunds_the_refund(call: Any) -> None:
    await call("modify_pending_order_payment", order_id=SHIRT, payment_method_id=CARD)
    assert await balance(call) == "37.57"
    order = json.loads(await call("cancel_pending_order", order_id=SHIRT, reason="no longer needed"))
    history = [(entry["transaction_type"], entry["payment_method_id"]) for entry in order["payment_history"]]
    assert history == [
        ("payment", CREDIT),
        ("payment", CARD),
        ("refund", CREDIT),
        ("refund", CREDIT),
        ("refund", CARD),
        ("refund", CREDIT),
    ]
    assert await balance(call) == "91.0"


async def test_a_card_that_paid_first_gains_twice_when_the_order_is_cancelled(call: Any) -> None:
    await call("modify_pending_order_payment", order_id=KETTLES, payment_method_id=CREDIT)
    assert await balance(call) == "713.73"
    await call("cancel_pending_order", order_id=KETTLES, reason="no longer needed")
    assert await balance(call) == "1959.19"


async def test_payment_can_be_changed_once(call: Any) -> None:
    await call("modify_pending_order_payment", order_id=SHIRT, payment_method_id=CARD)
    again = await call("modify_pending_order_payment", order_id=SHIRT, payment_method_id=CREDIT)
    assert again == "Error: there should be exactly one payment for a pending order"


@pytest.mark.parametrize(
    ("order_id", "payment_method_id", "refusal"),
    [
        ("#W0", CARD, "order not found"),
        ("#W2611340", "nothing", "non-pending order cannot be modified"),
        (SHIRT, "paypal_1", "payment method not found"),
        (SHIRT, "gift_card_1725971", "payment method not found"),  # somebody else's
        (SHIRT, CREDIT, "the new payment method should be different from the current one"),
        (KETTLES, CARD, "the new payment method should be different from the current one"),
        ("#W9318778", "gift_card_7728021", "the new payment method should be different from the current one"),
        ("#W4862767", "gift_card_9178183", "insufficient gift card balance to pay for the order"),
    ],
)
async def test_change_of_payment_is_refused(
    call: Any, db: Any, order_id: str, payment_method_id: str, refusal: str
) -> None:
    said = await call("modify_pending_order_payment", order_id=order_id, payment_method_id=payment_method_id)
    assert said == f"Error: {refusal}"
    assert not db.changes()


async def test_a_new_address_lists_the_state_before_the_country(call: Any) -> None:
    before = json.loads(await call("get_order_details", order_id=SHIRT))
    assert list(before["address"]) == ["address1", "address2", "city", "country", "state", "zip"]
    order = json.loads(await call("modify_pending_order_address", order_id=SHIRT, **ADDRESS))
    assert list(order["address"].items()) == list(ADDRESS.items())
    assert list(order) == list(before)
    assert order["status"] == "pending"


@pytest.mark.parametrize(
    "text", ["", " ", "Zoë", "\N{GRINNING FACE}", 'a "b"', "a\0b", "it's", "\\u00e9", "1e5"]
)
async def test_address_fields_come_back_as_they_were_given_in_escaped_json(call: Any, text: str) -> None:
    shown = await call("modify_pending_order_address", order_id=SHIRT, **dict.fromkeys(ADDRESS, text))
    assert f'"zip": {json.dumps(text)}}}' in shown
    assert shown.isascii()


async def test_item_change_keeps_every_bit_of_the_difference(call: Any) -> None:
    shown = await call(
        "modify_pending_order_items",
        order_id=KETTLES,
        item_ids=[GLASS],
        new_item_ids=[CERAMIC],
        payment_method_id=CARD,
    )
    assert '"status": "pending (item modified)"' in shown
    payment = (
        '{"transaction_type": "payment", "amount": 6.609999999999999, "payment_method_id": "' + CARD + '"}]'
    )
    assert payment in shown
    assert await balance(call) == "84.39"


async def test_amount_depends_on_the_order_in_which_items_are_named(base: Any) -> None:
    from tau_retail_task.tools import R

    old, new = ["7824298782", "5268233322", "1157853815"], ["7251508981", "4064702754", "3709608322"]
    amounts = []
    for step in (1, -1):
        arguments = {"item_ids": old[::step], "new_item_ids": new[::step]}
        with base.fork() as db:
            said = await R.execute_tool(
                "modify_pending_order_items",
                {"order_id": "#W9154975", "payment_method_id": "paypal_8963303", **arguments},
                db=db,
            )
        amounts.append(json.loads(said)["payment_history"][1]["amount"])
    assert amounts == [336.55, 336.55000000000007]


@pytest.mark.parametrize(
    ("item_ids", "new_item_ids", "held"),
    [
        ([GLASS, CERAMIC], [CERAMIC, GLASS], [GLASS, CERAMIC]),  # both steps hit the first kettle
        ([GLASS, CERAMIC], [CERAMIC, STEEL], [STEEL, CERAMIC]),
        ([CERAMIC, GLASS], [STEEL, CERAMIC], [CERAMIC, STEEL]),
    ],
)
async def test_each_pair_sees_what_the_pairs_before_it_did(
    call: Any, item_ids: list[str], new_item_ids: list[str], held: list[str]
) -> None:
    shown = await call(
        "modify_pending_order_items",
        order_id=KETTLES,
        item_ids=item_ids,
        new_item_ids=new_item_ids,
        payment_method_id=CREDIT,
    )
    kettles = [item["item_id"] for item in json.loads(shown)["items"] if item["name"] == "Tea Kettle"]
    assert kettles == held


async def test_same_item_is_a_refund_of_nothing_that_makes_the_balance_a_float(call: Any) -> None:
    assert await balance(call) == "91"
    shown = await call(
        "modify_pending_order_items",
        order_id=KETTLES,
        item_ids=[GLASS],
        new_item_ids=[GLASS],
        payment_method_id=CARD,
    )
    assert '{"transaction_type": "refund", "amount": 0.0, ' in shown
    assert await balance(call) == "91.0"


async def test_no_items_is_a_refund_of_a_whole_zero(call: Any) -> None:
    shown = await call(
        "modify_pending_order_items",
        order_id=KETTLES,
        item_ids=[],
        new_item_ids=[],
        payment_method_id=CARD,
    )
    assert '{"transaction_type": "refund", "amount": 0, ' in shown
    assert await balance(call) == "91"


async def test_one_of_two_equal_items_can_be_replaced_or_both(base: Any) -> None:
    from tau_retail_task.tools import R

    hose = "5753502325"
    for count in (1, 2, 3):
        arguments = {"order_id": "#W7208030", "payment_method_id": "credit_card_5809636"}
        with base.fork() as db:
            said = await R.execute_tool(
                "modify_pending_order_items",
                {**arguments, "item_ids": [hose] * count, "new_item_ids": ["9829827210"] * count},
                db=db,
            )
        if count == 3:
            assert said == f"Error: {hose} not found"
        else:
            held = [item["item_id"] for item in json.loads(said)["items"]]
            assert held == ["9829827210"] * count + [hose] * (2 - count)


@pytest.mark.parametrize(
    ("changed", "refusal"),
    [
        ({"order_id": "#W0"}, "order not found"),
        ({"order_id": "#W2611340", "item_ids": ["x"]}, "non-pending order cannot be modified"),
        ({"item_ids": [GLASS, GLASS]}, f"{GLASS} not found"),
        ({"item_ids": [""]}, " not found"),
        ({"item_ids": ["  x "], "new_item_ids": []}, "  x  not found"),
        ({"new_item_ids": []}, "the number of items to be exchanged should match"),
        ({"new_item_ids": ["x"], "payment_method_id": "x"}, "new item x not found or available"),
        ({"new_item_ids": ["6454334990"]}, "new item 6454334990 not found or available"),  # sold out
        ({"new_item_ids": ["9829827210"]}, "new item 9829827210 not found or available"),  # a garden hose
        ({"payment_method_id": "paypal_1"}, "payment method not found"),
        (
            {"item_ids": ["1096508426"], "new_item_ids": ["4772738468"]},
            "new item 4772738468 not found or available",
        ),
    ],
)
async def test_item_change_is_refused_by_the_first_check_that_fails(
    call: Any, db: Any, changed: dict[str, Any], refusal: str
) -> None:
    possible = {
        "order_id": KETTLES,
        "item_ids": [GLASS],
        "new_item_ids": [CERAMIC],
        "payment_method_id": CARD,
    }
    assert await call("modify_pending_order_items", **{**possible, **changed}) == f"Error: {refusal}"
    assert not db.changes()


async def test_after_an_item_change_nothing_else_can_be_done(call: Any) -> None:
    await call(
        "modify_pending_order_items",
        order_id=KETTLES,
        item_ids=[],
        new_item_ids=[],
        payment_method_id=CARD,
    )
    refusals = [
        await call("cancel_pending_order", order_id=KETTLES, reason="no longer needed"),
        await call("modify_pending_order_address", order_id=KETTLES, **ADDRESS),
        await call("modify_pending_order_payment", order_id=KETTLES, payment_method_id=CREDIT),
    ]
    assert refusals == [
        "Error: non-pending order cannot be cancelled",
        "Error: non-pending order cannot be modified",
        "Error: non-pending order cannot be modified",
    ]
