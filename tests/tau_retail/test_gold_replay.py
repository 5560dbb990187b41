"""The gold actions of every task, played and judged as in an evaluation."""

import asyncio
import functools
from dataclasses import dataclass
from typing import Any

import pytest
from reference import TOOLS, Data, private, run
from task_rows import BUNDLE, DATASETS

from reward_kit.agent.base.types import ToolCall
from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.database import Database
from reward_kit.agent.players.agents.replay import GoldAgent
from reward_kit.agent.rollout.orchestrator import run_rollout_async

IDLE_IS_RIGHT = {
    "task.jsonl": {10, 12, 25, 50, 57, 65, 106},
    "task_classic.jsonl": {10, 12, 25, 50, 57, 65, 106},
    "task_dev.jsonl": {17},
    "task_train.jsonl": {161, 214, 229, 288, 349},
}
"""Where nothing is to be changed and nothing to be said."""


class Idle:
    """Says one line and does nothing."""

    async def respond(self, rollout: Any) -> str:
        return "Goodbye."


@dataclass
class Played:
    """What came of a task: the rewards and the calls of the gold agent."""

    index: int
    reward: float | None
    idle_reward: float | None
    calls: list[ToolCall]


@functools.cache
def played(dataset: str, folder: Any) -> list[Played]:
    """Every task of a dataset, once with its gold actions and once with none."""
    return asyncio.run(_play_all(dataset, folder))


async def _play_all(dataset: str, folder: Any) -> list[Played]:
    with TaskBundle.load(BUNDLE / dataset) as bundle:
        seed = bundle.tasks[0].seed
        assert {task.seed.key for task in bundle.tasks} == {seed.key}
        with Database.seed(folder / f"{dataset}.db", seed.sql, origin=seed.origin) as base:
            return [await _play(task, base) for task in bundle.tasks]


async def _play(task: Any, base: Database) -> Played:
    gold = await run_rollout_async(task, 0, base=base, agent=GoldAgent())
    idle = await run_rollout_async(task, 0, base=base, agent=Idle())
    with gold.database, idle.database:
        return Played(
            index=task.row.metadata["index"],
            reward=gold.trace.reward,
            idle_reward=idle.trace.reward,
            calls=gold.trace.tool_calls,
        )


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return tmp_path_factory.mktemp("bases")


@pytest.mark.parametrize("dataset", DATASETS)
def test_gold_actions_earn_the_reward(dataset: str, folder: Any) -> None:
    results = played(dataset, folder)
    assert len(results) == DATASETS[dataset]
    assert [task.index for task in results if task.reward != 1.0] == []


@pytest.mark.parametrize("dataset", DATASETS)
def test_doing_nothing_is_paid_only_where_nothing_is_to_be_done(dataset: str, folder: Any) -> None:
    results = played(dataset, folder)
    assert {task.index for task in results if task.idle_reward == 1.0} == IDLE_IS_RIGHT[dataset]
    assert {task.idle_reward for task in results} == {0.0, 1.0}


@pytest.mark.parametrize("dataset", DATASETS)
def test_each_gold_call_answers_as_the_second_implementation_does(
    dataset: str, folder: Any, data: Data
) -> None:
    compared = 0
    for task in played(dataset, folder):
        assert {call.status for call in task.calls} <= {"ok", "refused"}
        copy = private(data)
        for call in task.calls:
            if call.name in TOOLS:
                assert run(copy, call.name, call.arguments) == call.content, (task.index, call.name)
                compared += 1
    assert compared >= DATASETS[dataset]
