"""Instructions hold what their gold actions need; ``TAU_BENCH=CHECKOUT`` compares them with the originals."""

import ast
import difflib
import os
import re
from pathlib import Path
from typing import Any

import pytest
from task_rows import DATASETS, rows

LITERAL = re.compile(r"[\w.]+@[\w.]*\w|\b[a-z]+_[a-z0-9_]+\b|\d+(?:[.,]\d+)*")
"""Email addresses, ids and numbers."""
KINDS = {"credit_card": r"card\b", "gift_card": r"gift card|\bGC\b", "paypal": r"paypal"}
REASONS = {"ordered by mistake": "mistake|accident", "no longer needed": ""}
LEFT_OPEN = {"retail.classic.074": "payment", "retail.classic.101": "payment", "retail.classic.076": "reason"}
"""Where the original instruction does not say how to pay, or why to cancel."""

ADDRESS = ("address1", "address2", "zip")
REWORDED = {"yes", "no", "none"}
"""Options that a sentence expresses by other words: "with water resistance"."""


def customers(text: str, users: dict[str, Any]) -> list[str]:
    """The users whose email or id is in the text, or else name and zip code."""
    literals = set(LITERAL.findall(text))
    return [
        user_id
        for user_id, user in users.items()
        if literals & {user_id, user["email"]}
        or (user["address"]["zip"] in literals and all(name in text for name in user["name"].values()))
    ]


@pytest.mark.parametrize("dataset", DATASETS)
def test_an_instruction_leads_to_one_customer_and_to_what_is_changed(dataset: str, data: Any) -> None:
    kinds = [kind["variants"] for kind in data["products"].values()]
    variants = {key: {*item["options"].values()} for kind in kinds for key, item in kind.items()}
    for row in rows(dataset):
        text = row["sim_user_prompt"]
        [user_id] = customers(text, data["users"])
        assert user_id == row["metadata"]["user_id"] or row["id"].endswith(("test.064", "classic.064"))
        user = data["users"][user_id]
        left_open = LEFT_OPEN.get(row["id"])
        assert {f"#{name}" for name in re.findall(r"\bW\d{7}\b", text)} <= set(user["orders"]), row["id"]
        for call in row["actions"]:
            given, methods = call["arguments"], user["payment_methods"]
            if call["name"].startswith(("find", "get", "calculate", "list", "transfer")):
                continue
            named = {given[key] for key in ("order_id", "payment_method_id") if key in given}
            if method := methods.get(given.get("payment_method_id")):
                paid = data["orders"][given["order_id"]]["payment_history"][0]["payment_method_id"]
                told = method["id"] in text or re.search(KINDS[method["source"]], text, re.IGNORECASE)
                assert told or len(methods) == 1 or method["id"] == paid or left_open == "payment", row["id"]
            if reason := given.get("reason"):
                assert re.search(REASONS[reason], text) or left_open == "reason", row["id"]
            if "zip" in given:
                known = [user["address"], *(data["orders"][key]["address"] for key in user["orders"])]
                untold = {(key, given[key]) for key in ADDRESS if given[key] not in text}
                assert any(untold <= address.items() for address in known), row["id"]
            for old, new in zip(given.get("item_ids", ()), given.get("new_item_ids", ()), strict=False):
                named |= variants[new] - variants[old] - REWORDED
            if dataset == "task_train.jsonl":  # the others may describe it: "the cheapest"
                for word in named:
                    assert re.search(rf"(?i)(?<!\w){re.escape(word)}(?!\w)", text), (row["id"], word)


@pytest.mark.skipif(not os.environ.get("TAU_BENCH"), reason="TAU_BENCH=DIR names no checkout of tau-bench")
@pytest.mark.parametrize(("dataset", "split"), [("classic", "test"), ("dev", "dev"), ("train", "train")])
def test_an_instruction_has_the_literals_of_the_original_in_other_words(dataset: str, split: str) -> None:
    source = Path(os.environ["TAU_BENCH"], "tau_bench", "envs", "retail", f"tasks_{split}.py").read_text()
    given = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.keyword)]
    originals = [ast.literal_eval(node.value) for node in given if node.arg == "instruction"]
    for row, original in zip(rows(f"task_{dataset}.jsonl"), originals, strict=True):
        text = row["sim_user_prompt"]
        values = re.sub("'(address1|address2|order_id)'", "", original)
        assert {*LITERAL.findall(text)} == {*LITERAL.findall(values)}, row["id"]
        ours, theirs = (re.findall(r"[\w'@.-]+\b", words.lower()) for words in (text, original))
        longest = difflib.SequenceMatcher(None, ours, theirs, autojunk=False).find_longest_match()
        assert longest.size <= 11, row["id"]
