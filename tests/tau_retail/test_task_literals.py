"""Each instruction holds, or leads the tools to, every literal that the gold actions write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from reachable import Customer, Shop, customers_of, reach
from task_rows import DATASETS, Row, rows, writing_calls
from told import (
    address_is_told,
    fitting,
    open_options,
    option_is_named,
    payment_is_told,
    reason_is_told,
    says,
)

ITEMS = ("exchange_delivered_order_items", "modify_pending_order_items", "return_delivered_order_items")
# Options that the customer says nothing about, and that only one item can have which fits all they do say.
_ONE_ITEM_FITS = {
    **{index: {"color"} for index in (6, 7, 9, 93, 94, 95, 96)},
    35: {"ram"},
    64: {"color"},
}
ONE_ITEM_FITS = {
    "retail.test": {**_ONE_ITEM_FITS, 99: {"color"}, 100: {"color"}},
    "retail.classic": {**_ONE_ITEM_FITS, 99: {"color", "type"}, 100: {"color", "type"}},
}
CHOICE_LEFT_OPEN = {64}  # where it is two, at different prices
# Left open by the original instructions, and added to them by the successor benchmark.
PAYMENT_LEFT_OPEN = {"retail.classic.074", "retail.classic.101"}
REASON_LEFT_OPEN = {"retail.classic.076"}
ADDRESS = ("address1", "address2", "city", "state", "country", "zip")


@pytest.fixture(scope="session")
def shop(base: Any) -> Iterator[Shop]:
    with base.fork() as fork:
        yield Shop(fork)


@pytest.fixture(params=DATASETS)
def dataset(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
async def tasks(dataset: str, shop: Shop) -> list[tuple[Row, Customer]]:
    """Each row with the one customer that its instruction leads to."""
    found = []
    for row in rows(dataset):
        users = await customers_of(row["sim_user_prompt"], shop)
        assert len(users) == 1, (row["id"], users)
        found.append((row, await reach(users.pop(), shop)))
    return found


def calls(tasks: list[tuple[Row, Customer]]) -> Iterator[tuple[str, str, Customer, str, Row]]:
    """Every writing call of the gold actions with the task's id, text and customer."""
    for row, customer in tasks:
        for name, arguments in writing_calls(row):
            yield row["id"], row["sim_user_prompt"], customer, name, arguments


def replacements(arguments: Row) -> Iterator[tuple[str, str]]:
    """Each item of a call with the one that replaces it."""
    return zip(arguments.get("item_ids", ()), arguments.get("new_item_ids", ()), strict=False)


async def test_the_customer_is_the_one_of_the_benchmark(tasks: list[tuple[Row, Customer]]) -> None:
    others = {row["id"][-3:] for row, customer in tasks if customer.user_id != row["metadata"]["user_id"]}
    # The benchmark notes another customer for test task 64 than its instruction and its gold actions have.
    assert others == ({"064"} if tasks[0][0]["metadata"]["split"] == "test" else set())


async def test_orders_and_users_are_those_of_the_customer(tasks: list[tuple[Row, Customer]]) -> None:
    for task, _, customer, _, arguments in calls(tasks):
        if "order_id" in arguments:
            assert arguments["order_id"] in customer.orders, task
        if "user_id" in arguments:
            assert arguments["user_id"] == customer.user_id, task


async def test_orders_that_the_customer_names_are_named_right(tasks: list[tuple[Row, Customer]]) -> None:
    for row, customer in tasks:
        named = {f"#{order_id}" for order_id in re.findall(r"\bW\d{7}\b", row["sim_user_prompt"])}
        assert named <= set(customer.orders), row["id"]


async def test_items_are_in_the_order_and_new_ones_among_the_same_product(
    tasks: list[tuple[Row, Customer]],
) -> None:
    for task, _, customer, name, arguments in calls(tasks):
        if name not in ITEMS:
            continue
        held = [item["item_id"] for item in customer.orders[arguments["order_id"]]["items"]]
        assert set(arguments["item_ids"]) <= set(held), task
        for item_id, new_item_id in replacements(arguments):
            assert customer.product_of[item_id] == customer.product_of[new_item_id], task


async def test_chosen_options_are_told_or_left_no_choice(tasks: list[tuple[Row, Customer]]) -> None:
    left_open: dict[int, set[str]] = {}
    for row, customer in tasks:
        index = row["metadata"]["index"]
        for _, arguments in writing_calls(row):
            for pair in replacements(arguments):
                options = open_options(row["sim_user_prompt"], customer, *pair)
                if options:
                    left_open.setdefault(index, set()).update(options)
                    assert index in CHOICE_LEFT_OPEN or len(fitting(customer, *pair, options)) == 1, row["id"]
    assert left_open == ONE_ITEM_FITS.get(tasks[0][0]["id"].rpartition(".")[0], {})


async def test_new_addresses_are_told(tasks: list[tuple[Row, Customer]]) -> None:
    untold = [
        (task, address)
        for task, text, customer, name, arguments in calls(tasks)
        if name.endswith("_address")
        and not address_is_told(
            text, address := {part: arguments[part] for part in ADDRESS}, customer.addresses
        )
    ]
    assert untold == []


async def test_payment_methods_are_told(tasks: list[tuple[Row, Customer]]) -> None:
    untold = set()
    for task, text, customer, _, arguments in calls(tasks):
        if "payment_method_id" not in arguments:
            continue
        methods = customer.profile["payment_methods"]
        paid_with = customer.orders[arguments["order_id"]]["payment_history"][0]["payment_method_id"]
        if not payment_is_told(text, methods[arguments["payment_method_id"]], methods, paid_with):
            untold.add(task)
    assert untold == {row["id"] for row, _ in tasks} & PAYMENT_LEFT_OPEN


async def test_reasons_to_cancel_are_told(tasks: list[tuple[Row, Customer]]) -> None:
    untold = {
        task
        for task, text, _, _, arguments in calls(tasks)
        if "reason" in arguments and not reason_is_told(text, arguments["order_id"], arguments["reason"])
    }
    assert untold == {row["id"] for row, _ in tasks} & REASON_LEFT_OPEN


@pytest.mark.parametrize("dataset", ["task_train.jsonl"])
async def test_train_instructions_name_orders_items_options_and_payment_methods(
    tasks: list[tuple[Row, Customer]],
) -> None:
    for task, text, customer, _, arguments in calls(tasks):
        assert arguments.get("order_id", "") in text, task
        assert arguments.get("payment_method_id", "") in text, task
        for item_id in arguments.get("item_ids", ()):
            assert says(text, customer.products[customer.product_of[item_id]]["name"]), (task, item_id)
        for item_id, new_item_id in replacements(arguments):
            old, new = customer.variant(item_id)["options"], customer.variant(new_item_id)["options"]
            unnamed = [o for o in new if new[o] != old[o] and not option_is_named(text, o, new[o])]
            assert unnamed == [], (task, item_id)
