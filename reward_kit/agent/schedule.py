"""Which rollouts are to be run, in which order, and running them side by side."""

from __future__ import annotations

import asyncio
import hashlib
import random
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.evaluation_config import EvaluationConfig

LONGEST_BACKOFF = 60.0
LOOK_EVERY = 0.01
"""Seconds between two looks whether more jobs may begin."""


@dataclass(frozen=True, slots=True)
class Job:
    """One rollout to run: the ``index``-th (from 0) of ``task``."""

    task: Task
    index: int

    @property
    def place(self) -> tuple[str, int]:
        """Row id and index: what tells it from all others of its evaluation."""
        return self.task.row.id, self.index


def chosen_tasks(tasks: Sequence[Task], config: EvaluationConfig) -> list[Task]:
    """The tasks that the configuration asks for, in the order in which they run.

    Shuffling comes before ``max_tasks``, so that both together draw a sample. Raises ``BundleError`` for
    unknown rows.
    """
    from reward_kit.agent.bundles.task_selection import select_tasks
    from reward_kit.agent.evaluation_config import flag_of

    chosen = select_tasks(
        tasks,
        task_ids=config.task_ids,
        start_index=config.start_index,
        end_index=config.end_index,
        called=flag_of,
    )
    if config.shuffle:
        random.Random(config.seed).shuffle(chosen)  # noqa: S311 - an order that can be had again, not a secret
    return chosen[: config.max_tasks]


def plan(
    tasks: Sequence[Task], n_rollouts: Mapping[str, int], finished: Collection[tuple[str, int]] = ()
) -> list[Job]:
    """The rollouts that are still to be run, trial by trial: the first of every task, then the second of
    every task.

    ``n_rollouts`` is by row id; ``finished`` holds ``(row id, index)``.
    """
    most = max((n_rollouts[task.row.id] for task in tasks), default=0)
    return [
        Job(task, index)
        for index in range(most)
        for task in tasks
        if index < n_rollouts[task.row.id] and (task.row.id, index) not in finished
    ]


def rollout_seed(seed: int, row_id: str, index: int, attempt: int = 0) -> int:
    """The seed of one rollout, from 0 to 2^31 - 1.

    It depends on nothing but these, so that a selection, another order or a resumption changes no rollout; a
    repeated attempt gets another, since the same might fail the same way.
    """
    parts = (seed, row_id, index) if attempt == 0 else (seed, row_id, index, attempt)
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") >> 1


def backoff(attempt: int, chance: random.Random) -> float:
    """Seconds before attempt ``attempt`` (from 1): doubling from one, up to half of it off at random."""
    return min(LONGEST_BACKOFF, 2.0 ** (attempt - 1)) * chance.uniform(0.5, 1.0)


async def run_jobs(
    jobs: Sequence[Job],
    play: Callable[[Job], Awaitable[None]],
    *,
    concurrency: int,
    may_start: Callable[[], bool] = lambda: True,
    room: Callable[[], int] | None = None,
) -> None:
    """Play the jobs in order, at most ``concurrency`` at a time; a job that waits is nothing but its place in
    the list.

    ``room`` says how many more may begin just now: the number of those that run grows with it, up to
    ``concurrency``. No job is started any more once ``may_start`` says no; those that run are finished. The
    first error, or a cancellation, cancels all others and is raised when they have ended.
    """
    waiting = iter(jobs)
    begun = 0
    failed = asyncio.Event()

    async def work() -> None:
        nonlocal begun
        try:
            for job in waiting:
                if not may_start():
                    return
                begun += 1
                await play(job)
        except BaseException:
            failed.set()
            raise

    most = min(concurrency, len(jobs))
    workers: list[asyncio.Future[None]] = []
    failing: asyncio.Future[Any] = asyncio.ensure_future(failed.wait())
    try:
        while len(workers) < most and may_start() and not failed.is_set():
            more = most - len(workers) if room is None else min(most - len(workers), room())
            workers += [asyncio.ensure_future(work()) for _ in range(more)]
            if len(workers) < most:
                await _heard(failed, LOOK_EVERY)
                if begun == len(jobs):
                    break
        # a cancelled gather would cancel them, not wait for them, and then they would be cancelled once more
        over: asyncio.Future[Any] = asyncio.gather(*workers, return_exceptions=True)
        await asyncio.wait({over, failing}, return_when=asyncio.FIRST_COMPLETED)
        for worker in workers:
            if worker.done():
                worker.result()
    finally:
        failing.cancel()
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, failing, return_exceptions=True)


async def _heard(event: asyncio.Event, seconds: float) -> None:
    with suppress(asyncio.TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
