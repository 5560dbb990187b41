"""The schedule of an evaluation: its rollouts, their order and their seeds, and running them side by side."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from reward_kit.agent.bundles.task import select_tasks
from reward_kit.agent.config import flag_of
from reward_kit.agent.rollout.opening import rollout_seed
from reward_kit.agent.rows.task_row import TaskRow
from reward_kit.agent.scoring.groups import values_at
from reward_kit.agent.store.branches import origin_of
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.store.resume import PlannedRow

_Job = TypeVar("_Job")
_Row = TypeVar("_Row", "Task", TaskRow)

SETTLING = 0.01
"""Seconds in which jobs that have begun make their first calls, before it is asked for room for more."""


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout to run: the ``index``-th (from 0) of ``task``."""

    task: PlannedRow
    index: int

    @property
    def place(self) -> tuple[str, int]:
        """Row id and index, which tell a rollout from all others of its evaluation."""
        return self.task.row.id, self.index


def chosen_tasks(tasks: Sequence[_Row], config: EvaluationConfig) -> list[_Row]:
    """The tasks (or rows) that the configuration selects, in the order in which they run.

    Shuffling comes before ``max_tasks``, so that both together draw a sample. Raises ``BundleError`` for
    unknown rows.
    """
    chosen = select_tasks(
        tasks,
        task_ids=config.task_ids,
        start_index=config.start_index,
        end_index=config.end_index,
        called=flag_of,
    )
    for field, value in config.filter.items():
        chosen = [one for one in chosen if value in values_at(_row(one).reward_fields(), field)]
    if not chosen:
        wanted = ", ".join(f"{field}={value}" for field, value in config.filter.items())
        raise BundleError(f"no row has {wanted}", place=flag_of("filter"))
    if config.shuffle:
        random.Random(config.seed).shuffle(chosen)  # noqa: S311 - an order that can be had again, not a secret
    return chosen[: config.max_tasks]


def _row(one: _Row) -> TaskRow:
    return one if isinstance(one, TaskRow) else one.row


def jobs_of(
    rows: Sequence[PlannedRow], asked: Mapping[str, int], finished: Collection[tuple[str, int]] = ()
) -> list[Job]:
    """The rollouts that are left to run: the first of every row, then the second of every row, and so on.

    ``asked`` are their numbers by row id; ``finished`` holds ``(row id, index)``.
    """
    return [
        Job(row, index)
        for index in range(max(asked.values(), default=0))
        for row in rows
        if index < asked[row.row.id] and (row.row.id, index) not in finished
    ]


def seed_of(config: EvaluationConfig, row_id: str, index: int, attempt: int = 0) -> int:
    """The seed of one rollout of an evaluation; branches have others than their origin."""
    origin = origin_of(config.branch_of)
    return rollout_seed(config.seed, f"{row_id} {origin}" if origin else row_id, index, attempt)


async def run_jobs(
    jobs: Sequence[_Job],
    play: Callable[[_Job], Awaitable[None]],
    *,
    concurrency: int,
    may_start: Callable[[], bool] = lambda: True,
    room: Callable[[], Awaitable[int]] | None = None,
) -> None:
    """Play the jobs in order, at most ``concurrency`` at a time.

    ``room`` waits until further jobs may begin, and gives their number: the number of running ones grows with
    it, up to ``concurrency``. Once ``may_start`` is False no more jobs start, and the running ones finish.
    The first error, or a cancellation, cancels all others and is raised when they have ended.
    """
    waiting = iter(jobs)
    most = min(concurrency, len(jobs))
    stopping = False
    workers: list[asyncio.Future[None]] = []

    async def work() -> None:
        for job in waiting:
            if stopping or not may_start():
                return
            await play(job)

    async def start() -> None:
        while len(workers) < most and may_start():
            more = most - len(workers) if room is None else min(most - len(workers), await room())
            for _ in range(more):
                workers.append(asyncio.ensure_future(work()))
                workers[-1].add_done_callback(lambda _: starting.cancel())  # no job is left, or one failed
            if len(workers) < most:
                await asyncio.sleep(SETTLING)

    starting = asyncio.ensure_future(start())
    try:
        await asyncio.wait([starting])
        if not starting.cancelled():
            starting.result()
        if workers:
            done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
            for worker in done:
                worker.result()
    finally:
        stopping = True  # a job that ends in spite of its cancellation starts no other
        for worker in (starting, *workers):
            worker.cancel()
        await asyncio.gather(starting, *workers, return_exceptions=True)
