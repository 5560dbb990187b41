"""The datasets hold what the benchmark's tasks are: how many, which calls, which outputs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from task_rows import BUNDLE, DATASETS, Row, rows

from reward_kit.agent.bundles.bundle import TaskBundle

PREFIX = {
    "task.jsonl": "retail.test",
    "task_classic.jsonl": "retail.classic",
    "task_dev.jsonl": "retail.dev",
    "task_train.jsonl": "retail.train",
}
SPLIT = {
    "task.jsonl": "test",
    "task_classic.jsonl": "test",
    "task_dev.jsonl": "dev",
    "task_train.jsonl": "train",
}
CALLS = {  # as counted in the benchmark
    "get_order_details": 171,
    "get_product_details": 73,
    "find_user_id_by_name_zip": 62,
    "get_user_details": 59,
    "return_delivered_order_items": 42,
    "modify_pending_order_items": 39,
    "exchange_delivered_order_items": 36,
    "cancel_pending_order": 25,
    "modify_pending_order_address": 24,
    "find_user_id_by_email": 15,
    "calculate": 14,
    "modify_user_address": 11,
    "list_all_product_types": 6,
    "transfer_to_human_agents": 4,
    "modify_pending_order_payment": 1,
}
CORRECTED_OUTPUTS = {34, 37, 38}


def names(row: Row) -> list[Any]:
    """The gold actions of a row."""
    return list(row["actions"])


def differing(field: Any) -> set[int]:
    """The places where the corrected tasks differ from the original ones."""
    pairs = zip(rows("task.jsonl"), rows("task_classic.jsonl"), strict=True)
    return {place for place, (new, old) in enumerate(pairs) if field(new) != field(old)}


@pytest.mark.parametrize("dataset", DATASETS)
def test_rows_are_numbered_in_the_order_of_the_benchmark(dataset: str) -> None:
    assert [row["id"] for row in rows(dataset)] == [
        f"{PREFIX[dataset]}.{index:03}" for index in range(DATASETS[dataset])
    ]
    assert [row["metadata"]["index"] for row in rows(dataset)] == list(range(DATASETS[dataset]))
    assert {row["metadata"]["split"] for row in rows(dataset)} == {SPLIT[dataset]}


@pytest.mark.parametrize("dataset", DATASETS)
def test_every_gold_action_names_a_tool_and_all_its_arguments(dataset: str) -> None:
    with TaskBundle.load(BUNDLE / dataset) as bundle:
        assert bundle.warnings == []
        tools = bundle.tasks[0].registry.tools
        for task in bundle.tasks:
            assert task.system_prompt
            assert task.row.max_steps == 30
            for action in task.row.actions or ():
                assert set(action.arguments) == set(tools[action.name].schema["properties"]), task.row.id


def test_gold_calls_of_the_original_test_tasks() -> None:
    calls = Counter(action["name"] for row in rows("task_classic.jsonl") for action in names(row))
    assert calls == CALLS
    assert [row["metadata"]["index"] for row in rows("task_classic.jsonl") if not names(row)] == [24, 57]


def test_metadata_tell_of_every_correction() -> None:
    told = {row["metadata"]["index"]: row["metadata"].get("correction", "") for row in rows("task.jsonl")}
    changed = differing(lambda row: (row["sim_user_prompt"], row["actions"], row["outputs"]))
    assert {index for index, text in told.items() if text} == changed
    assert {index for index, text in told.items() if "Gold actions:" in text} == differing(names)
    assert {index for index, text in told.items() if "Outputs:" in text} == CORRECTED_OUTPUTS
    others = [row for dataset in DATASETS if dataset != "task.jsonl" for row in rows(dataset)]
    assert not any("correction" in row["metadata"] for row in others)
