"""The datasets of the bundle as plain rows."""

import functools
import json
from pathlib import Path
from typing import Any

BUNDLE = Path(__file__).parents[2] / "tau_retail_task"
DATASETS = {"task.jsonl": 115, "task_classic.jsonl": 115, "task_dev.jsonl": 20, "task_train.jsonl": 500}
"""The number of tasks in each dataset."""

Row = dict[str, Any]


@functools.cache
def rows(dataset: str) -> list[Row]:
    """The rows in file order."""
    lines = (BUNDLE / dataset).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]
