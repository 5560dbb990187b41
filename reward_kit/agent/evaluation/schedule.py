"""The plan of a run: its rollouts, their order and their seeds, and running them side by side."""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from reward_kit.agent.bundles.task import select_tasks
from reward_kit.agent.config import flag_of
from reward_kit.agent.evaluation.progress import Tally
from reward_kit.agent.rollout.budgets import Budget
from reward_kit.agent.rollout.outcome import REWARD_ERROR
from reward_kit.agent.rows.task_row import TaskRow
from reward_kit.agent.scoring.groups import values_at
from reward_kit.agent.store.differences import check_same
from reward_kit.agent.store.loading import StoredRollout
from reward_kit.agent.store.resume import more_than_asked
from reward_kit.agent.store.stored_evaluation import has_runs, judged_places, read_evaluation
from reward_kit.errors import BundleError, DatabaseError, StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.store.layout import RunsFolder
    from reward_kit.agent.store.resume import PlannedRow, Run
    from reward_kit.agent.store.writer import Store

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


@dataclass(slots=True)
class Plan:
    """The rollouts of a run: ``jobs`` are left to be played, ``unjudged`` are over, but their reward failed.

    The ``tally`` begins with what is done already, in ``seconds_before`` by earlier runs. ``warning``: more
    is there than is asked for.
    """

    jobs: list[Job]
    unjudged: list[tuple[Job, Outcome]]
    tally: Tally
    seconds_before: float
    warning: str | None


def make_plan(config: EvaluationConfig, run: Run, folder: RunsFolder, store: Store) -> Plan:
    """Plan ``run`` with what ``store`` has of the evaluation already, and begin it there.

    Raises ``UsageError`` if the evaluation was started with something else.
    """
    has_begun = has_runs(store.path)
    before = read_evaluation(store.path, running=True, unjudged=True) if has_begun else None
    asked = {row.row.id: row.n_rollouts for row in run.rows}
    finished = judged_places(store.path)
    more = Counter(row_id for row_id, index in finished if index >= asked.get(row_id, 0))
    if more:
        rows = [replace(row, n_rollouts=row.n_rollouts + more[row.row.id]) for row in run.rows]
        run = replace(run, rows=rows)
    if before is not None:
        check_same(run, before)
        folder.sweep(asked)
    left = jobs_of(run.rows, asked, finished)
    unjudged = {
        (outcome.row_id, outcome.index): outcome
        for outcome in (before.outcomes if before is not None else ())
        if outcome.unjudged_reason == REWARD_ERROR and _is_kept(StoredRollout(store.path, outcome.id))
    }
    tally = Tally(
        run.eval_id,
        sum(asked.values()) + more.total(),
        Budget(config.max_cost, config.max_tokens),
        errors_as_failures=config.errors_as_failures,
    )
    if before is not None:
        tally.add_earlier(finished)
        for usage in (*before.usage.values(), *before.broken_off.usage.values()):
            tally.usage.add(usage)
    store.begin_run(run)
    return Plan(
        [job for job in left if job.place not in unjudged],
        [(job, unjudged[job.place]) for job in left if job.place in unjudged],
        tally,
        before.seconds if before is not None else 0.0,
        more_than_asked(asked, finished),
    )


def _is_kept(rollout: StoredRollout) -> bool:
    """True if the final state of a rollout can be read."""
    try:
        with ExitStack() as opened:
            return rollout.open("final", "overlay", opened) is not None
    except (StorageError, DatabaseError):
        return False


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


def rollout_seed(seed: int, row_id: str, index: int, attempt: int = 0) -> int:
    """The seed of one rollout, from 0 to 2^31 - 1.

    It depends on nothing but these, so that a selection, another order or a resumption changes no rollout; a
    repeated attempt gets another, since the same might fail the same way.
    """
    parts = (seed, row_id, index) if attempt == 0 else (seed, row_id, index, attempt)
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") >> 1


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
