"""Which task of tau-bench a row is: there a task has no name, only its place in a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.bundles.task import Task


def task_numbers(tasks: Sequence[Task]) -> dict[str, int]:
    """The ``task_id`` of each row of a dataset, by row id.

    It is ``metadata.index`` where every row has one of its own, as the retail bundle's have; otherwise the
    row's position in the dataset, from 0.
    """
    numbers = [number_in(task.row.metadata) for task in tasks]
    if None in numbers or len(set(numbers)) < len(numbers):
        return {task.row.id: position for position, task in enumerate(tasks)}
    return {task.row.id: number for task, number in zip(tasks, numbers, strict=True) if number is not None}


def number_in(metadata: Mapping[str, Any]) -> int | None:
    """The ``index`` of a row's metadata, if it is a place in a list."""
    index = metadata.get("index")
    return index if isinstance(index, int) and not isinstance(index, bool) and index >= 0 else None
