"""Finding customers, their profiles, the catalogue, and the tools that touch no data."""

from __future__ import annotations

import json
from typing import Any

import pytest


async def test_profile_shows_each_kind_of_payment_method_in_its_own_form(call: Any) -> None:
    shown = await call("get_user_details", user_id="omar_kim_3528")
    assert (
        '"payment_methods": {"gift_card_3749819": '
        '{"source": "gift_card", "balance": 91, "id": "gift_card_3749819"}, '
        '"credit_card_3577130": {"source": "credit_card", "brand": "mastercard", "last_four": "9843", '
        '"id": "credit_card_3577130"}}, "orders": [' in shown
    )
    profile = json.loads(await call("get_user_details", user_id="noah_brown_6181"))
    assert list(profile) == ["name", "address", "email", "payment_methods", "orders"]
    assert profile["payment_methods"]["paypal_5727330"] == {"source": "paypal", "id": "paypal_5727330"}


async def test_profile_of_nobody(call: Any) -> None:
    assert await call("get_user_details", user_id="Noah_Brown_6181") == "Error: user not found"


@pytest.mark.parametrize(
    ("email", "found"),
    [
        ("noah.brown7922@example.com", "noah_brown_6181"),
        ("NOAH.Brown7922@Example.COM", "noah_brown_6181"),
        ("noah.brown7922@example.com ", "Error: user not found"),
        ("noah.brown7922@example.com\0", "Error: user not found"),
        ("noah.brown%", "Error: user not found"),
        ("", "Error: user not found"),
    ],
)
async def test_customers_are_found_by_email_in_any_case(call: Any, email: str, found: str) -> None:
    assert await call("find_user_id_by_email", email=email) == found


@pytest.mark.parametrize(
    ("first_name", "last_name", "zip_code", "found"),
    [
        ("Yusuf", "Khan", "78242", "yusuf_khan_2015"),
        ("yusuf", "KHAN", "75313", "yusuf_khan_7091"),
        ("Yusuf", "\N{KELVIN SIGN}han", "75313", "yusuf_khan_7091"),  # lower() makes a k of it
        ("Yusuf ", "Khan", "75313", "Error: user not found"),
        ("Yusuf", "Khan", "75313 ", "Error: user not found"),
        ("Khan", "Yusuf", "75313", "Error: user not found"),
    ],
)
async def test_customers_are_found_by_name_and_zip(
    call: Any, first_name: str, last_name: str, zip_code: str, found: str
) -> None:
    said = await call("find_user_id_by_name_zip", first_name=first_name, last_name=last_name, zip=zip_code)
    assert said == found


async def test_search_by_zip_follows_the_address_and_finds_the_first_of_two_users(call: Any) -> None:
    address = {"address1": "a", "address2": "b", "city": "c", "state": "d", "country": "e"}
    name = {"first_name": "Yusuf", "last_name": "Khan"}
    before = await call("find_user_id_by_name_zip", **name, zip="75313")
    shown = await call("modify_user_address", user_id="yusuf_khan_2015", **address, zip="75313")
    assert list(json.loads(shown)["address"].items()) == [*address.items(), ("zip", "75313")]
    after = await call("find_user_id_by_name_zip", **name, zip="75313")
    gone = await call("find_user_id_by_name_zip", **name, zip="78242")
    assert (before, after, gone) == ("yusuf_khan_7091", "yusuf_khan_2015", "Error: user not found")


async def test_address_of_nobody_cannot_be_changed(call: Any, db: Any) -> None:
    address = dict.fromkeys(["address1", "address2", "city", "state", "country", "zip"], "x")
    assert await call("modify_user_address", user_id="nobody", **address) == "Error: user not found"
    assert not db.changes()


async def test_new_default_address_leaves_orders_as_they_are(call: Any) -> None:
    before = await call("get_order_details", order_id="#W1080318")
    address = dict.fromkeys(["address1", "address2", "city", "state", "country", "zip"], "x")
    await call("modify_user_address", user_id="omar_kim_3528", **address)
    assert await call("get_order_details", order_id="#W1080318") == before


async def test_product_lists_its_items_with_options_and_availability(call: Any) -> None:
    shown = await call("get_product_details", product_id="9523456873")
    assert shown.startswith(
        '{"name": "T-Shirt", "product_id": "9523456873", "variants": {'
        '"9612497925": {"item_id": "9612497925", '
        '"options": {"color": "blue", "size": "M", "material": "cotton", "style": "crew neck"}, '
        '"available": true, "price": 50.88}, '
    )


async def test_the_id_of_an_item_is_no_product_id(call: Any) -> None:
    assert await call("get_product_details", product_id="9612497925") == "Error: product not found"


async def test_products_are_listed_by_name(call: Any) -> None:
    products = json.loads(await call("list_all_product_types"))
    assert list(products) == sorted(products)
    assert len(products) == 50
    assert products["T-Shirt"] == "9523456873"


async def test_thinking_says_nothing_and_changes_nothing(call: Any, db: Any) -> None:
    assert await call("think", thought="The kettle is cheaper.") == ""
    assert not db.changes()


async def test_transfer_ends_the_rollout_and_nothing_else_does(db: Any) -> None:
    from tau_retail_task.tools import R

    result = await R.call("transfer_to_human_agents", {"summary": "?"}, db=db)
    assert (result.content, result.terminal) == ("Transfer successful", True)
    assert [name for name, tool in R.tools.items() if tool.terminal] == ["transfer_to_human_agents"]


def test_sixteen_tools_are_offered_in_alphabetical_order() -> None:
    from tau_retail_task.tools import R

    names = [tool["function"]["name"] for tool in R.get_openai_tools()]
    assert len(names) == 16
    assert names == sorted(names)


def test_every_tool_and_every_parameter_is_described_and_required() -> None:
    from tau_retail_task.tools import R

    for tool in R.tools.values():
        assert len(tool.description) > 20
        properties = tool.schema["properties"]
        assert tool.schema["required"] == list(properties)
        for name, schema in properties.items():
            assert schema["description"], (tool.name, name)
            assert schema["type"] == ("array" if name in ("item_ids", "new_item_ids") else "string")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("cancel_pending_order", {"order_id": "#W1080318"}),
        ("cancel_pending_order", {"order_id": "#W1080318", "reason": None}),
        ("cancel_pending_order", {"order_id": "#W1080318", "reason": "no longer needed", "data": {}}),
        (
            "return_delivered_order_items",
            {"order_id": "#W1840144", "item_ids": "8", "payment_method_id": "x"},
        ),
        (
            "return_delivered_order_items",
            {"order_id": "#W1840144", "item_ids": [8], "payment_method_id": "x"},
        ),
        ("modify_user_address", {"user_id": "omar_kim_3528", "zip": 12345}),
        ("get_user_details", {"user_id": 7}),
        ("get_user_details", '{"user_id": "omar'),
        ("get_user_details", {"user_id": "\ud800"}),
        ("calculate", {"expression": 2}),
    ],
)
async def test_arguments_of_the_wrong_form_are_refused_and_change_nothing(
    db: Any, name: str, arguments: Any
) -> None:
    from tau_retail_task.tools import R

    result = await R.call(name, arguments, db=db)
    assert result.status == "invalid_arguments"
    assert result.content.startswith(f"Error: invalid arguments for tool {name!r}: ")
    assert not db.changes()


async def test_a_refused_call_says_so_in_its_status(db: Any) -> None:
    from tau_retail_task.tools import R

    assert (await R.call("get_order_details", {"order_id": "?"}, db=db)).status == "refused"
    assert (await R.call("calculate", {"expression": "1/0"}, db=db)).status == "refused"
