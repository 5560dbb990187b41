"""How an evaluation is split over processes: who plays what, and how much of it at the same time."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from reward_kit.agent.evaluation_config import EvaluationConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.schedule import Job

STARTS = 3
"""How often in succession a process may die before its first rollout begins (it was killed just then)."""
_OF_THE_WHOLE = (
    "clear_cache",
    "eval_id",
    "explain",
    "fail_under",
    "json",
    "max_cost",
    "max_tokens",
    "resume",
    "task_ids",
    "start_index",
    "end_index",
    "max_tasks",
    "workers",
)
"""What the process that shares out the work sees to by itself."""


def share_jobs(jobs: Sequence[Job], processes: int) -> list[list[Job]]:
    """The jobs of each process, none of them empty.

    Rollouts of a row stay together where there are rows enough: its gold actions are then replayed once.
    """
    rows = {row_id: place for place, row_id in enumerate(dict.fromkeys(job.task.row.id for job in jobs))}
    by_row = len(rows) >= 4 * processes
    shares: list[list[Job]] = [[] for _ in range(processes)]
    for place, job in enumerate(jobs):
        shares[(rows[job.task.row.id] if by_row else place) % processes].append(job)
    return [share for share in shares if share]


def share_concurrency(max_concurrency: int, processes: int) -> list[int]:
    """How many rollouts each process plays at the same time: in sum ``max_concurrency``."""
    each, more = divmod(max_concurrency, processes)
    return [each + (place < more) for place in range(processes)]


def share_config(config: EvaluationConfig, concurrency: int) -> dict[str, Any]:
    """The configuration of a process that plays ``concurrency`` rollouts at the same time, as JSON values.

    ``rpm`` and ``tpm`` stay as they are: they hold for all processes together (``providers.leave``).
    """
    values = {
        item.name: getattr(config, item.name)
        for item in fields(EvaluationConfig)
        if item.name not in _OF_THE_WHOLE
    }
    values["max_concurrency"] = concurrency
    return values
