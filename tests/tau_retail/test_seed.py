"""The seed holds the benchmark's data in their order, and so does a seed that the port makes of them."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from places import BUNDLE
from reference import state_hash

from reward_kit.agent import Database
from reward_kit.agent.tau.tau_bench.bundle import FINGERPRINTS, seed_sql

SEEDED = "c49125b83c32941ba527a31dce753cef1dee9a65fe2633c3a3c50816cef083ab"


def test_data_are_those_of_the_benchmark(data: Any) -> None:
    assert state_hash(data) == SEEDED


def test_no_row_refers_to_one_that_is_not_there(base: Any) -> None:
    assert base.read_only().fetch_all("PRAGMA foreign_key_check") == []


def test_a_seed_made_from_the_data_holds_the_same(data: Any, base: Any, tmp_path: Path) -> None:
    text = (BUNDLE / "seed.sql").read_text(encoding="utf-8")
    products = text[text.index("INSERT INTO products ") :]
    payments = text[text.index("WITH given (order_id, amount") :]
    orders = {  # in the order of the benchmark's files
        order_id: data["orders"][order_id]
        for order_id in re.findall(r"^\('(#W\d+)'", payments, re.MULTILINE)[:1000]
    }
    named = {key: data["products"][key] for key in re.findall(r"^\('(\d{10})'", products, re.MULTILINE)[:50]}
    for name, content in (("users", data["users"]), ("products", named), ("orders", orders)):
        assert hashlib.sha256(json.dumps(content).encode()).hexdigest() == FINGERPRINTS[f"{name}.json"]
    with Database.seed(tmp_path / "made.db", seed_sql(data["users"], named, orders)) as made:
        for (table,) in base.read_only().fetch_all("SELECT name FROM sqlite_schema WHERE type = 'table'"):
            ours, given = (one.read_only().fetch_all(f"SELECT * FROM {table}") for one in (made, base))
            assert sorted(map(repr, map(tuple, ours))) == sorted(map(repr, map(tuple, given))), table


def test_users_stand_in_the_order_of_the_benchmark_s_file(data: Any) -> None:
    """It decides whom the find tools find; payment methods and address fields are in their order, too."""
    assert hashlib.sha256(json.dumps(data["users"]).encode()).hexdigest() == FINGERPRINTS["users.json"]
