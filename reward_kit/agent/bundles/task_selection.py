"""Choosing some of a bundle's tasks."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reward_kit.agent.bundle import Task


def select_tasks(
    tasks: Sequence[Task],
    *,
    task_ids: str | Iterable[str | int] | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
    max_tasks: int | None = None,
) -> list[Task]:
    """The tasks named by ``task_ids``, or those of a range of positions; at most ``max_tasks``.

    ``task_ids`` are row ids or positions from 0 (also as text, separated by commas); an id wins over a
    position that looks the same. They come in the order given, each once. A range excludes ``end_index``;
    None or -1 there means the end. Raises ``BundleError`` for what is not there, and where nothing is left.
    """
    if max_tasks is not None and max_tasks < 1:
        raise BundleError(f"got {max_tasks}, expected a whole number >= 1", place="max_tasks")
    if task_ids is None:
        chosen = _between(tasks, start_index, end_index)
    elif start_index is not None or end_index is not None:
        raise BundleError("task_ids cannot be given together with start_index or end_index")
    else:
        chosen = _named(tasks, task_ids.split(",") if isinstance(task_ids, str) else task_ids)
    return chosen[:max_tasks]


def _between(tasks: Sequence[Task], start: int | None, end: int | None) -> list[Task]:
    first = start or 0
    last = len(tasks) if end is None or end == -1 else end
    if not 0 <= first < len(tasks):
        raise BundleError(f"got {first}, expected 0 to {len(tasks) - 1}", place="start_index")
    if last <= first:
        raise BundleError(f"got {last}, expected more than start_index ({first})", place="end_index")
    return list(tasks[first:last])


def _named(tasks: Sequence[Task], names: Iterable[str | int]) -> list[Task]:
    positions = {task.row.id: position for position, task in enumerate(tasks)}
    chosen: dict[int, Task] = {}
    unknown: list[str] = []
    for item in names:
        name = str(item).strip()
        if not name:
            continue
        position = positions.get(name) if isinstance(item, str) else None
        if position is None and name.isascii() and name.isdigit() and int(name) < len(tasks):
            position = int(name)
        if position is None:
            unknown.append(_suggest(name, positions))
        else:
            chosen[position] = tasks[position]
    if unknown:
        remedy = f"The dataset has {len(tasks)} rows; give ids or positions from 0 to {len(tasks) - 1}."
        raise BundleError(f"there is no row {', '.join(unknown)}", place="task_ids", remedy=remedy)
    if not chosen:
        raise BundleError("names no row", place="task_ids")
    return list(chosen.values())


def _suggest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"{name!r} (did you mean {close[0]!r}?)" if close else repr(name)
