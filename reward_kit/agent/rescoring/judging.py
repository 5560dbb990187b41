"""Calling the reward of now on what an evaluation has stored."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from reward_kit.agent.bundles.loop_guard import own_tasks_guarded
from reward_kit.agent.evaluation_config import EvaluationConfig, check_eval_id
from reward_kit.agent.judge import call_reward, names_argument, takes_async_faces
from reward_kit.agent.metrics import is_success
from reward_kit.agent.outcome import UNJUDGED_STOPS, RolloutOutcome
from reward_kit.agent.rescoring.rejudged import Rejudged, Rescoring
from reward_kit.agent.rescoring.written import write_evaluation
from reward_kit.agent.reward_retries import judged_with_retries
from reward_kit.agent.runs.evaluation_log import LoggedEvaluation, read_log
from reward_kit.agent.runs.resume import resumed_options
from reward_kit.agent.runs.rollout_record import RolloutRecord, load_rollout
from reward_kit.agent.runs.stored_evaluation import Named, find_stored
from reward_kit.agent.strict_json import copied
from reward_kit.errors import BundleError, RewardError, RewardKitError, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from reward_kit.agent.bundle import Task, TaskBundle
    from reward_kit.models import EvaluateResult, RewardOutput

AT_A_TIME = 8
REWARD_TIMEOUT = 300.0
DAMAGED = (KeyError, TypeError, AttributeError, ValueError)
"""What reading a trajectory raises whose fields are not of their kinds."""


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

    The evaluation stays as it is, and has to have its log.

    The rows are those of ``dataset`` as they are now; without it, of the dataset that was evaluated. With
    ``eval_id`` the results become an evaluation of that name beside the old one. ``timeout`` is in seconds
    for one reward. What hinders one rollout (no database, an error in the reward) is told in its outcome.
    Raises ``UsageError``, ``BundleError`` and ``StorageError`` for what hinders all.
    """
    from reward_kit.agent.bundle import TaskBundle

    if eval_id is not None:
        check_eval_id(eval_id)
    if not timeout > 0:  # nan is not more, either
        raise UsageError(f"--timeout must be more than 0, not {timeout:g}")
    log = find_stored(name, output_dir)
    started = time.perf_counter()
    if eval_id is not None and log.with_name(f"{eval_id}.jsonl").exists():
        raise UsageError(
            f"there is an evaluation {eval_id} already",
            place=str(log.parent),
            remedy="Choose another --eval-id.",
        )
    logged = _read(log)
    config = _config(log, dataset, task_dir, eval_id)
    with TaskBundle.load(config.dataset, task_dir=config.task_dir) as bundle:
        judge = _Judge(bundle, log.parent.parent, timeout, config.retries, warn)
        limit = asyncio.Semaphore(AT_A_TIME)

        async def judged(outcome: RolloutOutcome) -> Rejudged:
            async with limit:
                return await judge.again(outcome)

        with own_tasks_guarded():
            rollouts = await asyncio.gather(*map(judged, _final(logged)))
        done = Rescoring(log, config, tuple(rollouts), _planned(logged), time.perf_counter() - started)
        if eval_id is None:
            return done
        return replace(done, written=write_evaluation(done, bundle.tasks))


def _told(error: Exception, outcome: RolloutOutcome) -> str:
    if isinstance(error, RewardKitError):
        return str(error)
    return f"{outcome.file}: is damaged: {type(error).__name__}: {error}"


class _Judge:
    """Finds the reward and the row of a rollout, and calls the one on the other."""

    def __init__(
        self, bundle: TaskBundle, root: Path, timeout: float, retries: int, warn: Callable[[str], None]
    ) -> None:
        self._tasks = {task.row.id: task for task in bundle.tasks}
        self._rewards = {(task.row.toolset, task.row.reward): task.reward for task in bundle.tasks}
        self._dataset = bundle.dataset
        self._root = root
        self._timeout = timeout
        self._retries = retries
        self._warn = warn
        self._warned: set[str] = set()

    async def again(self, outcome: RolloutOutcome) -> Rejudged:
        if outcome.stop_reason in UNJUDGED_STOPS:
            return Rejudged(outcome, outcome)
        try:
            with load_rollout(self._root / outcome.file) as record:
                reward, record.fields = self._found(record)
                judging = partial(self._judged, record, reward)
                result = await judged_with_retries(judging, self._retries)
                plain = result.to_dict() if hasattr(result, "to_dict") else result.model_dump()
                now = _judged_outcome(outcome, record, float(result.score), str(plain.get("reason") or ""))
        except (RewardKitError, *DAMAGED) as error:
            now = replace(
                outcome, reward=None, error=_told(error, outcome), failure=None, failure_detail=None
            )
            return Rejudged(outcome, replace(now, failure_step=None, turn_of_success=None))
        return Rejudged(outcome, now, plain, record.fields)

    async def _judged(
        self, record: RolloutRecord, reward: Callable[..., Any]
    ) -> EvaluateResult | RewardOutput:
        """Call the reward on a record of its own: what it changes there is not there the next time."""
        assert record.path is not None, "it was read"
        task = self._tasks.get(record.row_id)
        with load_rollout(record.path) as given:
            given.fields = copied(record.fields)
            arguments = given.reward_arguments(
                is_async=takes_async_faces(reward), mode=task.registry.database if task else "overlay"
            )
            return await call_reward(reward, lambda: arguments, timeout=self._timeout)

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
                    remedy="Replay the evaluation instead: reward-kit agent-eval --agent replay:LOG.",
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
    from reward_kit.agent.record_keeping import outcome_of

    record.reward, record.error = reward, None
    if is_success(reward):
        record.failure = None
    elif record.failure is None:
        record.failure = {"kind": "other", "detail": reason or "the reward judges it so now"}
    return outcome_of(record, file=outcome.file, final=True, tool_faults=outcome.tool_faults)


def _read(log: Path) -> LoggedEvaluation:
    if log.suffix != ".jsonl":
        raise UsageError(
            "is not the log of an evaluation",
            place=str(log),
            remedy="Name an evaluation, or its log runs/evals/ID.jsonl.",
        )
    logged = read_log(log)
    if not logged.headers or not logged.outcomes:
        raise StorageError("holds no rollouts to judge", place=str(log))
    return logged


def _config(
    log: Path, dataset: str | Path | None, task_dir: str | Path | None, eval_id: str | None
) -> EvaluationConfig:
    """The configuration of the evaluation, with the dataset that is to be read now."""
    given: dict[str, Any] = {"resume": log.stem, "output_dir": str(log.parent.parent)}
    if dataset is not None or task_dir is not None:
        given |= {
            "dataset": None if dataset is None else str(dataset),
            "task_dir": None if task_dir is None else str(task_dir),
        }
    options = resumed_options(given) | {"resume": None, "eval_id": eval_id or log.stem}
    return EvaluationConfig(**options)


def _final(logged: LoggedEvaluation) -> Sequence[RolloutOutcome]:
    """The last final outcome of each rollout, row by row."""
    latest = {(outcome.row_id, outcome.index): outcome for outcome in logged.outcomes if outcome.final}
    rows = list(dict.fromkeys([*_planned(logged), *(row_id for row_id, _ in latest)]))
    return sorted(latest.values(), key=lambda outcome: (rows.index(outcome.row_id), outcome.index))


def _planned(logged: LoggedEvaluation) -> dict[str, int]:
    planned: dict[str, int] = {}
    for header in logged.headers:
        planned |= {row_id: row["n_rollouts"] for row_id, row in header["rows"].items()}
    return planned
