"""Calling a reward on the messages and databases of a stored rollout."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.strict_json import copied
from reward_kit.agent.base.types import UNJUDGED_STOPS
from reward_kit.agent.config import EvaluationConfig, check_eval_id
from reward_kit.agent.records.loading import load_rollout
from reward_kit.agent.records.outcome import RolloutOutcome, is_success
from reward_kit.agent.rescoring.rejudged import Rejudged, Rescoring
from reward_kit.agent.rescoring.written import write_evaluation
from reward_kit.agent.rollout.judge import (
    call_reward,
    judged_with_retries,
    names_argument,
    takes_async_faces,
)
from reward_kit.agent.scoring.record_keeping import outcome_of, plain_result
from reward_kit.agent.storage.resume import resumed_options
from reward_kit.agent.storage.stored_evaluation import Named, load_evaluation
from reward_kit.errors import BundleError, RewardError, RewardKitError, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from reward_kit.agent.base.types import ModelCall
    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database.database import Mode
    from reward_kit.agent.records.rollout_record import RolloutRecord
    from reward_kit.agent.storage.stored_evaluation import StoredEvaluation
    from reward_kit.models import EvaluateResult, RewardOutput

AT_A_TIME = 8
REWARD_TIMEOUT = 300.0
DAMAGED = (KeyError, TypeError, AttributeError, ValueError)
"""Exceptions of reading a trajectory whose fields are not of their types."""


async def judge_record(
    record: RolloutRecord,
    reward: Callable[..., Any],
    *,
    mode: Mode = "overlay",
    timeout: float | None = REWARD_TIMEOUT,
    retries: int = 0,
    calls: list[ModelCall] | None = None,
) -> EvaluateResult | RewardOutput:
    """The result of ``reward`` on a stored rollout.

    Each try gets a record of its own, with the fields of ``record``. Model calls that the reward counts are
    added to ``calls``. Raises ``RewardError`` as ``judge`` does, ``StorageError`` and ``DatabaseError`` where
    the stored databases cannot be read.
    """
    assert record.path is not None, "it was read"
    path = record.path
    counted = [] if calls is None else calls

    async def judge_once() -> EvaluateResult | RewardOutput:
        nonlocal counted
        with load_rollout(path) as given:
            given.fields = copied(record.fields)
            before = len(given.model_calls)
            arguments = given.reward_arguments(is_async=takes_async_faces(reward), mode=mode)
            try:
                return await call_reward(reward, lambda: arguments, timeout=timeout)
            finally:
                counted += given.model_calls[before:]

    return await judged_with_retries(judge_once, retries)


async def rescore(
    name: Named,
    output_dir: str | Path = "runs",
    *,
    dataset: str | Path | None = None,
    task_dir: str | Path | None = None,
    eval_id: str | None = None,
    timeout: float = REWARD_TIMEOUT,
    warn: Callable[[str], None] = lambda _: None,
) -> Rescoring:
    """Judge the rollouts of the evaluation that ``name`` means again (see ``find_stored``).

    The evaluation stays as it is. The rows are those of ``dataset`` as they are now; without it, of the
    dataset that was evaluated. With ``eval_id`` the results become an evaluation of that name beside the old
    one. ``timeout`` is in seconds for one reward. A fault of one rollout (no database, an error in the
    reward) is in its outcome. Raises ``UsageError``, ``BundleError`` and ``StorageError`` for faults of all.
    """
    from reward_kit.agent.bundles.bundle import TaskBundle

    if eval_id is not None:
        check_eval_id(eval_id)
    if not timeout > 0:  # nan is not more, either
        raise UsageError(f"--timeout must be more than 0, not {timeout:g}")
    started = time.perf_counter()
    stored = load_evaluation(name, output_dir)
    if eval_id is not None and stored.path.with_stem(eval_id).exists():
        raise UsageError(
            f"there is an evaluation {eval_id} already",
            place=str(stored.path.parent),
            remedy="Choose another --eval-id.",
        )
    if not stored.outcomes:
        raise StorageError("holds no rollouts to judge", place=str(stored.path))
    config = _config(stored, dataset, task_dir, eval_id)
    with TaskBundle.load(config.dataset, task_dir=config.task_dir) as bundle:
        judge = _Judge(bundle, stored, timeout, config.retries, warn)
        limit = asyncio.Semaphore(AT_A_TIME)

        async def judged(outcome: RolloutOutcome) -> Rejudged:
            async with limit:
                return await judge.again(outcome)

        rollouts = await asyncio.gather(*map(judged, stored.outcomes))
        planned = {row.row_id: row.planned for row in stored.rows}
        done = Rescoring(stored.path, config, tuple(rollouts), planned, time.perf_counter() - started)
        if eval_id is None:
            return done
        return replace(done, written=write_evaluation(done, stored, bundle.tasks))


class _Judge:
    """Finds the reward and the row of a rollout, and calls the one on the other."""

    def __init__(
        self,
        bundle: TaskBundle,
        stored: StoredEvaluation,
        timeout: float,
        retries: int,
        warn: Callable[[str], None],
    ) -> None:
        self._tasks = {task.row.id: task for task in bundle.tasks}
        self._rewards = {(task.row.toolset, task.row.reward): task.reward for task in bundle.tasks}
        self._dataset = bundle.dataset
        self._stored = stored
        self._timeout = timeout
        self._retries = retries
        self._warn = warn
        self._warned: set[str] = set()

    async def again(self, outcome: RolloutOutcome) -> Rejudged:
        """The outcome of a rollout as it is judged now."""
        if outcome.stop_reason in UNJUDGED_STOPS:
            return Rejudged(outcome, outcome)
        try:
            record = load_rollout(self._stored.folder / outcome.file)
            reward, record.fields = self._found(record)
            task = self._tasks.get(record.row_id)
            result = await judge_record(
                record,
                reward,
                mode=task.registry.database if task else "overlay",
                timeout=self._timeout,
                retries=self._retries,
            )
            plain = plain_result(result) or {}
            now = _judged_outcome(outcome, record, float(result.score), str(plain.get("reason") or ""))
        except (RewardKitError, *DAMAGED) as error:
            fault = (
                str(error)
                if isinstance(error, RewardKitError)
                else f"{outcome.file}: is damaged: {type(error).__name__}: {error}"
            )
            now = replace(outcome, reward=None, error=fault, failure=None, failure_detail=None)
            return Rejudged(outcome, replace(now, failure_step=None, turn_of_success=None))
        return Rejudged(outcome, now, plain, record.fields)

    def _found(self, record: RolloutRecord) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The reward as it is now, and the row: as it is now, or as recorded where it is no longer there."""
        task = self._tasks.get(record.row_id)
        if task is None:
            reward = self._rewards.get((record.row.toolset, record.row.reward))
            if reward is None:
                raise BundleError(
                    f"the dataset has no row {record.row_id}, and none with its toolset",
                    place=str(self._dataset),
                    remedy="Name the dataset that was evaluated with --dataset.",
                )
            return reward, record.fields
        self._check_same_start(task, record)
        return task.reward, task.row.reward_fields()

    def _check_same_start(self, task: Task, record: RolloutRecord) -> None:
        place = f"row {record.row_id}"
        if task.row.reward_fields().get("actions") != record.fields.get("actions"):
            if names_argument(task.reward, "gold_db"):
                raise RewardError(
                    "its gold actions have changed, so the stored gold_db is not what they lead to",
                    place=place,
                    remedy="Replay the evaluation instead: reward-kit agent-eval --agent replay:FILE.",
                )
            self._warn_once(f"{place}: its gold actions have changed since; gold_db is that of the former")
        if task.seed.key != record.base:
            self._warn_once(
                f"{place}: its seed has changed since; the stored databases begin with the former"
            )

    def _warn_once(self, warning: str) -> None:
        if warning not in self._warned:
            self._warned.add(warning)
            self._warn(warning)


def _judged_outcome(
    outcome: RolloutOutcome, record: RolloutRecord, reward: float, reason: str
) -> RolloutOutcome:
    record.reward, record.error = reward, None
    if is_success(reward):
        record.failure = None
    elif record.failure is None:
        record.failure = {"kind": "other", "detail": reason or "the reward judges it so now"}
    return outcome_of(record, final=True, database=outcome.database, tool_faults=outcome.tool_faults)


def _config(
    stored: StoredEvaluation, dataset: str | Path | None, task_dir: str | Path | None, eval_id: str | None
) -> EvaluationConfig:
    """The configuration of the evaluation, with the dataset that is to be read now."""
    given: dict[str, Any] = {"resume": stored.eval_id, "output_dir": str(stored.folder)}
    if dataset is not None or task_dir is not None:
        given |= {
            "dataset": None if dataset is None else str(dataset),
            "task_dir": None if task_dir is None else str(task_dir),
        }
    options = resumed_options(given) | {"resume": None, "eval_id": eval_id or stored.eval_id}
    return EvaluationConfig(**options)
