"""Choosing tasks by id, position and number."""

from pathlib import Path
from typing import Any

import pytest
from flight_bundle import Bundle

from reward_kit.agent.bundles.bundle import Task, TaskBundle
from reward_kit.agent.bundles.seed import Seed
from reward_kit.agent.bundles.task import select_tasks
from reward_kit.agent.rewards import evaluate
from reward_kit.agent.rows.task_row import TaskRow
from reward_kit.agent.tools.registry import ToolRegistry
from reward_kit.errors import BundleError, UsageError

IDS = ["a", "b", "1", "d"]
REGISTRY = ToolRegistry("none")
TASKS = [Task(TaskRow(id=row_id, toolset="x.tools"), REGISTRY, evaluate, Seed("0"), Path()) for row_id in IDS]


def chosen(**options: Any) -> list[str]:
    return [task.row.id for task in select_tasks(TASKS, **options)]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, IDS),
        ({"max_tasks": 2}, ["a", "b"]),
        ({"start_index": 1}, ["b", "1", "d"]),
        ({"start_index": 1, "end_index": 3}, ["b", "1"]),
        ({"end_index": -1}, IDS),
        ({"task_ids": "d, a"}, ["d", "a"]),
        ({"task_ids": ["d", "a", "d"]}, ["d", "a"]),
        ({"task_ids": "0,3"}, ["a", "d"]),
        ({"task_ids": "1"}, ["1"]),
        ({"task_ids": [1]}, ["b"]),
        ({"task_ids": "[bd],?"}, ["b", "d", "a", "1"]),
    ],
)
def test_tasks_are_chosen(options: dict[str, Any], ids: list[str]) -> None:
    assert chosen(**options) == ids


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"task_ids": "aa,b,9"}, "task_ids: there is no row 'aa' (did you mean 'a'?), '9'. The dataset"),
        ({"task_ids": "b*,x*"}, "task_ids: there is no row 'x*'"),
        ({"task_ids": [-1]}, "task_ids: there is no row '-1'"),
        ({"task_ids": "a", "start_index": 0}, "cannot be given together"),
        ({"start_index": 2, "end_index": 2}, "end_index: got 2, expected more than start_index (2)"),
        ({"max_tasks": 0}, "max_tasks: got 0, expected a whole number >= 1"),
    ],
)
def test_what_is_not_there_is_told(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(BundleError) as caught:
        chosen(**options)
    assert expected in str(caught.value)


def test_an_episode_of_no_row_is_refused(bundle: Bundle) -> None:
    with TaskBundle.load(bundle.dataset) as opened, pytest.raises(UsageError, match="there is no row None"):
        opened.episode(None)  # type: ignore[arg-type]
