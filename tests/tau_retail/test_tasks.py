"""The datasets hold what the benchmark's tasks are: how many, which calls, which outputs."""

import json
from pathlib import Path
from typing import Any

import pytest
from command import run_command
from task_rows import BUNDLE, DATASETS, rows

from reward_kit.agent.bundles.bundle import TaskBundle

NONE: dict[str, list[str]] = {"accept": []}
CORRECTED_OUTPUTS = {34, 37, 38}


def differing(field: Any) -> set[int]:
    """The places where the corrected tasks differ from the original ones."""
    pairs = zip(rows("task.jsonl"), rows("task_classic.jsonl"), strict=True)
    return {place for place, (new, old) in enumerate(pairs) if field(new) != field(old)}


@pytest.mark.parametrize("dataset", DATASETS)
def test_rows_are_numbered_in_the_order_of_the_benchmark(dataset: str) -> None:
    numbers = range(DATASETS[dataset])
    name = dataset.removeprefix("task").removesuffix(".jsonl").removeprefix("_") or "test"
    assert [row["id"] for row in rows(dataset)] == [f"retail.{name}.{index:03}" for index in numbers]
    assert [row["metadata"]["index"] for row in rows(dataset)] == list(numbers)
    assert {row["metadata"]["split"] for row in rows(dataset)} == {"test" if name == "classic" else name}


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


def test_original_tasks_without_gold_calls() -> None:
    assert [row["metadata"]["index"] for row in rows("task_classic.jsonl") if not row["actions"]] == [24, 57]


def test_metadata_tell_of_every_correction() -> None:
    told = {row["metadata"]["index"]: row["metadata"].get("correction", "") for row in rows("task.jsonl")}
    changed = differing(lambda row: (row["sim_user_prompt"], row["actions"], row["outputs"]))
    assert {index for index, text in told.items() if text} == changed
    of_gold = {index for index, text in told.items() if "Gold actions:" in text}
    assert of_gold == differing(lambda row: row["actions"])
    assert {index for index, text in told.items() if "Outputs:" in text} == CORRECTED_OUTPUTS
    others = [row for dataset in DATASETS if dataset != "task.jsonl" for row in rows(dataset)]
    assert not any("correction" in row["metadata"] for row in others)


def test_deep_validation_finds_nothing_that_a_row_does_not_accept(tmp_path: Path) -> None:
    """One row for each kind that rows accept; all 115 rows take half a minute."""
    by_kind = {
        kind: row for row in rows("task.jsonl") for kind in row["metadata"].get("audit", NONE)["accept"]
    }
    chosen = {row["id"] for row in by_kind.values()}
    assert "retail.test.106" in chosen
    found = tmp_path / "found.json"
    done = run_command("audit", str(BUNDLE), "--task-ids", ",".join(sorted(chosen)), "--json", str(found))
    assert done.code == 0, done.out + done.err
    assert json.loads(found.read_text(encoding="utf-8"))["findings"] == []
