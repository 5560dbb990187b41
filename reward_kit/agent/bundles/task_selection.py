"""Choosing some of a bundle's tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.tools.arguments import did_you_mean
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from reward_kit.agent.bundles.task import Task


def select_tasks(
    tasks: Sequence[Task],
    *,
    task_ids: str | Iterable[str | int] | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
    max_tasks: int | None = None,
    called: Callable[[str], str] = str,
) -> list[Task]:
    """The tasks named by ``task_ids``, or those of a range of positions; at most ``max_tasks``.

    ``task_ids`` are row ids or positions from 0 (also as text, separated by commas); an id wins over a
    position that looks the same. They come in the order given, each once. A range excludes ``end_index``;
    None or -1 there means the end. ``called`` gives the name by which a parameter is known to the person who
    said it. Raises ``BundleError`` for what is not there, and where nothing is left.
    """
    if max_tasks is not None and max_tasks < 1:
        raise BundleError(f"got {max_tasks}, expected a whole number >= 1", place=called("max_tasks"))
    if task_ids is None:
        chosen = _between(tasks, start_index, end_index, called)
    elif start_index is not None or end_index is not None:
        ids, start, end = map(called, ("task_ids", "start_index", "end_index"))
        raise BundleError(f"{ids} cannot be given together with {start} or {end}")
    else:
        names = task_ids.split(",") if isinstance(task_ids, str) else task_ids
        chosen = _named(tasks, names, called("task_ids"))
    return chosen[:max_tasks]


def _between(
    tasks: Sequence[Task], start: int | None, end: int | None, called: Callable[[str], str]
) -> list[Task]:
    first = start or 0
    last = len(tasks) if end is None or end == -1 else end
    if not 0 <= first < len(tasks):
        raise BundleError(f"got {first}, expected 0 to {len(tasks) - 1}", place=called("start_index"))
    if last <= first:
        fault = f"got {last}, expected more than {called('start_index')} ({first})"
        raise BundleError(fault, place=called("end_index"))
    return list(tasks[first:last])


def _named(tasks: Sequence[Task], names: Iterable[str | int], called: str) -> list[Task]:
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
            unknown.append(f"{name!r}{did_you_mean(name, [*positions])}")
        else:
            chosen[position] = tasks[position]
    if unknown:
        rows = "1 row" if len(tasks) == 1 else f"{len(tasks)} rows"
        remedy = f"The dataset has {rows}; give ids or positions from 0 to {len(tasks) - 1}."
        raise BundleError(f"there is no row {', '.join(unknown)}", place=called, remedy=remedy)
    if not chosen:
        raise BundleError("names no row", place=called)
    return list(chosen.values())
