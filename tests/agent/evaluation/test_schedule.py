"""Which rollouts run, in which order, with which seeds, and how many at a time."""

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from small_task import small_task

from reward_kit.agent.base.worker_thread import completed
from reward_kit.agent.bundles.bundle import Task
from reward_kit.agent.bundles.task import rollout_seed
from reward_kit.agent.config import EvaluationConfig
from reward_kit.agent.evaluation.job_runner import run_jobs
from reward_kit.agent.evaluation.options import chosen_tasks
from reward_kit.agent.evaluation.plan import Job, jobs_of
from reward_kit.errors import BundleError


@pytest.fixture
def tasks(tmp_path: Path) -> list[Task]:
    return [small_task(tmp_path, id=f"row{number}") for number in range(5)]


def names(jobs: list[Job]) -> list[tuple[str, int]]:
    return [(job.task.row.id, job.index) for job in jobs]


def test_every_row_runs_once_before_any_runs_twice(tasks: list[Task]) -> None:
    jobs = jobs_of(tasks[:3], {"row0": 2, "row1": 1, "row2": 3})
    assert names(jobs) == [("row0", 0), ("row1", 0), ("row2", 0), ("row0", 1), ("row2", 1), ("row2", 2)]


def test_seeds_differ_and_depend_on_nothing_else() -> None:
    seeds = {rollout_seed(10, f"row{row}", index) for row in range(50) for index in range(20)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert rollout_seed(10, "row1", 2) == rollout_seed(10, "row1", 2)
    others = [rollout_seed(10, "row1", 2), rollout_seed(11, "row1", 2), rollout_seed(10, "row1", 2, 1)]
    assert len(set(others)) == 3


def test_seeds_stay_what_they_are_between_releases() -> None:
    assert rollout_seed(10, "flight.booking.001", 0) == 261373859


async def test_a_rollout_is_stored_though_the_next_one_fails_at_once() -> None:
    stored = []

    async def store(job: int) -> None:
        await completed(asyncio.sleep(0.01), "storing")
        stored.append(job)

    async def play(job: int) -> Coroutine[Any, Any, None]:
        if job == 0:
            return store(job)
        raise BundleError("a faulty seed")

    async def room() -> int:
        return 1

    with pytest.raises(BundleError):
        await run_jobs(range(2), play, concurrency=2, room=room)
    assert stored == [0]


def test_shuffling_with_a_limit_draws_a_sample_that_repeats(tasks: list[Task]) -> None:
    def ids(**options: Any) -> list[str]:
        return [task.row.id for task in chosen_tasks(tasks, EvaluationConfig(**options))]

    assert ids() == ["row0", "row1", "row2", "row3", "row4"]
    assert ids(start_index=1, end_index=3) == ["row1", "row2"]
    assert ids(task_ids="row3,0") == ["row3", "row0"]
    assert ids(shuffle=True, max_tasks=3, seed=1) == ids(shuffle=True, max_tasks=3, seed=1)
    assert ids(shuffle=True, seed=1) != ids(shuffle=True, seed=2)
    assert sorted(ids(shuffle=True)) == ids()


def test_a_wrong_choice_is_reported_by_its_flag(tasks: list[Task]) -> None:
    for options, fault in (
        ({"task_ids": "row9"}, "--rows: there is no row 'row9'"),
        ({"start_index": 7}, "--start-index: got 7"),
        ({"start_index": 2, "end_index": 1}, r"--end-index: got 1, expected more than --start-index \(2\)"),
    ):
        with pytest.raises(BundleError, match=fault):
            chosen_tasks(tasks, EvaluationConfig(**options))
