"""Rollouts of an evaluation, judged again by the bundle's reward as it is now.

No agent or user is asked and no tool is run: the reward gets the stored databases and messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import DAMAGED, copied
from reward_kit.agent.base.option import check_eval_id
from reward_kit.agent.base.types import UNJUDGED_STOPS
from reward_kit.agent.base.worker_thread import sync_twin
from reward_kit.agent.bundles.rules import violations_of
from reward_kit.agent.config import EvaluationConfig
from reward_kit.agent.rewards.checks import checking
from reward_kit.agent.rollout.judge import (
    call_reward,
    judged_with_retries,
    names_argument,
    plain_result,
    takes_async_faces,
)
from reward_kit.agent.rollout.outcome import Outcome, Played
from reward_kit.agent.rollout.trace import redacted_warning
from reward_kit.agent.scoring.failures.classify import classify, expected_calls
from reward_kit.agent.scoring.metrics import row_results
from reward_kit.agent.store.evaluation_file import read_fields, read_gold_calls, reading, rollout_at
from reward_kit.agent.store.fingerprints import code_facts, tool_files
from reward_kit.agent.store.layout import Named, load_evaluation, read_evaluation
from reward_kit.agent.store.loading import StoredRollout
from reward_kit.agent.store.resume import make_run, resumed_options
from reward_kit.agent.store.writer import Store
from reward_kit.errors import BundleError, RewardError, RewardKitError, StorageError, UsageError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.base.types import ModelCall
    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.bundles.rules import Rule
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.store.results import EvaluationResult
    from reward_kit.agent.store.resume import Run
    from reward_kit.models import EvaluateResult, RewardOutput

logger = logging.getLogger(__name__)

FORMAT = "reward-kit.rescoring/1"
AT_A_TIME = 8
REWARD_TIMEOUT = 300.0
_COLUMNS = "row_id, n_rollouts, position, base, fields, fingerprints"
_READ_ROWS = f"SELECT {_COLUMNS} FROM rows"  # noqa: S608
_ADD_ROW = f"INSERT INTO rows ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)"  # noqa: S608
_GOLD = "gold_calls, gold_changes, gold_state, gold_crc"
PROMPTS = ("initial_messages", "system_prompt", "sim_user_prompt")  # with which a row is played


@dataclass(frozen=True, slots=True)
class Rejudged:
    """One rollout as recorded ``before`` and judged ``now``; ``result`` is the reward's.

    ``failure`` is that of its trace.
    """

    before: Outcome
    now: Outcome
    result: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None

    @property
    def failed(self) -> bool:
        return self.now.unjudged_reason == "reward_error"

    @property
    def reason(self) -> str:
        """The reason of the reward, in its own words."""
        return str(self.now.error or (self.result or {}).get("reason") or "")

    def to_json(self) -> dict[str, Any]:
        return {
            "row_id": self.now.row_id,
            "index": self.now.index,
            "file": self.before.file,
            "reward_before": self.before.reward,
            "reward": self.now.reward,
            "error": self.now.error,
            "result": self.result,
        }


@dataclass(frozen=True, slots=True)
class Rescoring:
    """The evaluation ``stored``, judged again; ``written`` is the new evaluation, if one was made."""

    stored: EvaluationResult
    config: EvaluationConfig
    rollouts: tuple[Rejudged, ...]
    seconds: float
    written: EvaluationResult | None = None

    @property
    def changed(self) -> list[Rejudged]:
        """The rollouts whose reward has changed, also those that have none now."""
        return [one for one in self.rollouts if one.before.reward != one.now.reward]

    @property
    def failed(self) -> list[Rejudged]:
        return [one for one in self.rollouts if one.failed]

    @property
    def before(self) -> EvaluationResult:
        """The results as they were, without the rollouts that cannot be judged now."""
        return self._results(rollout.now if rollout.failed else rollout.before for rollout in self.rollouts)

    @property
    def now(self) -> EvaluationResult:
        """The results as they are judged now."""
        return self._results(rollout.now for rollout in self.rollouts)

    def _results(self, outcomes: Iterable[Outcome]) -> EvaluationResult:
        planned = {row.row_id: row.planned for row in self.stored.rows if row.outcomes}
        rows = row_results(planned, outcomes, errors_as_failures=self.config.errors_as_failures)
        return replace(self.stored, rows=rows, results={})

    def to_json(self) -> dict[str, Any]:
        before, now = self.before, self.now
        rewards = [one and one.value for one in (before.averages.reward, now.averages.reward)]
        return {
            "format": FORMAT,
            "log": str(self.stored.log_path),
            "pass_power_before": {str(k): one.to_json() for k, one in before.pass_power.items()},
            "pass_power": {str(k): one.to_json() for k, one in now.pass_power.items()},
            "reward_before": rewards[0],
            "reward": rewards[1],
            "changed": len(self.changed),
            "not_judged": len(self.failed),
            "rollouts": [rollout.to_json() for rollout in self.rollouts],
        }


async def rescore_async(
    name: Named,
    output_dir: str | Path = "runs",
    *,
    dataset: str | Path | None = None,
    task_dir: str | Path | None = None,
    eval_id: str | None = None,
    timeout: float = REWARD_TIMEOUT,
    warn: Callable[[str], None] = logger.warning,
) -> Rescoring:
    """Judge the rollouts of the evaluation that ``name`` means again (see ``load_evaluation``).

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
    if eval_id is not None:
        check_unused(stored.log_path.with_stem(eval_id))
    if not stored.outcomes:
        raise StorageError("holds no rollouts to judge", place=str(stored.log_path))
    given: dict[str, Any] = {"resume": stored.eval_id, "output_dir": str(stored.folder)}
    if dataset is not None or task_dir is not None:
        given |= {"dataset": dataset and str(dataset), "task_dir": task_dir and str(task_dir)}
    options = resumed_options(given) | {"resume": None, "eval_id": eval_id or stored.eval_id}
    config = EvaluationConfig(**options)
    with (
        TaskBundle.load(config.dataset, task_dir=config.task_dir, mode=config.mode) as bundle,
        reading(stored.log_path) as connection,
    ):
        tasks = {task.row.id: task for task in bundle.tasks}
        judge = _Judge(bundle, tasks, stored.log_path, connection, timeout, config.retries, cache(warn))
        rollouts = await asyncio.gather(*map(judge.again, stored.outcomes))
        if judge.redacted:
            warn(redacted_warning(judge.redacted))
        done = Rescoring(stored, config, tuple(rollouts), time.perf_counter() - started)
        return done if eval_id is None else store_rescoring(done, bundle)


rescore = sync_twin(rescore_async)


@dataclass(frozen=True, slots=True)
class _Judge:
    """Finds the reward and the row of a rollout, and calls the one on the other."""

    bundle: TaskBundle
    tasks: Mapping[str, Task]
    log: Path
    connection: sqlite3.Connection
    timeout: float
    retries: int
    warn_once: Callable[[str], None]
    limit: asyncio.Semaphore = field(default_factory=partial(asyncio.Semaphore, AT_A_TIME))
    redacted: list[Outcome] = field(default_factory=list)

    async def again(self, outcome: Outcome) -> Rejudged:
        """The outcome of a rollout as it is judged now."""
        if outcome.stop_reason in UNJUDGED_STOPS:
            return Rejudged(outcome, outcome)
        async with self.limit:
            try:
                return await self._again(outcome)
            except RewardKitError as error:
                fault = str(error)
            except DAMAGED as error:
                fault = f"{outcome.file}: is damaged: {type(error).__name__}: {error}"
        now = replace(outcome, error=fault, reward=None, turn_of_success=None, metrics=None, violations=None)
        return Rejudged(outcome, replace(now, failure=None, failure_detail=None, failure_step=None))

    async def _again(self, outcome: Outcome) -> Rejudged:
        record = StoredRollout(self.log, outcome.id).read(self.connection)
        if record.redacted:
            self.redacted.append(outcome)
        reward, record.fields = self._found(record, outcome.base)
        task = self.tasks.get(record.row_id)
        rules, limit = self.bundle.rules, self.timeout
        result = await judge_record(record, reward, task, rules=rules, timeout=limit, retries=self.retries)
        record.result, record.reward, record.error = plain_result(result), float(result.score), None
        self._classify(record, reward, task)
        now = record.outcome(base=outcome.base, database=outcome.database)
        return Rejudged(outcome, now, record.result, record.failure)

    def _classify(self, record: Trace, reward: Callable[..., Any], task: Task | None) -> None:
        if record.success:
            record.failure = None
            return
        expected = expected_calls(*read_gold_calls(self.log, record.row_id))
        kept = rollout_at(self.log / record.id, self.connection)
        with StoredRollout(self.log, record.id, kept._replace(gold_fault=None)).read() as given:
            arguments = given.reward_arguments(hidden=task.hidden if task is not None else ())
            changes, view = arguments["db"].changes(), arguments["gold_db"]
            gold = None if view is None else view.changes()
            fault = kept.gold_fault
            classify(record, reward, changes=changes, gold=gold, expected=expected, gold_fault=fault)

    def _found(self, record: Trace, base: str) -> tuple[Callable[..., Any], dict[str, Any]]:
        """The reward as it is now, and the row: as it is now, or as recorded if it is gone."""
        if (task := self.tasks.get(record.row_id)) is not None:
            self._check_same_start(task, record, base)
            return task.reward, task.row.reward_fields()
        wanted = record.row.toolset, record.row.reward
        for task in self.bundle.tasks:
            if (task.row.toolset, task.row.reward) == wanted:
                return task.reward, record.fields
        fault = f"the dataset has no row {record.row_id}, and none with its toolset"
        remedy = "Name the dataset that was evaluated with --dataset."
        raise BundleError(fault, place=str(self.bundle.dataset), remedy=remedy)

    def _check_same_start(self, task: Task, record: Trace, base: str) -> None:
        place = f"row {record.row_id}"
        if task.row.reward_fields().get("actions") != record.fields.get("actions"):
            if names_argument(task.reward, "gold_db"):
                fault = "its gold actions have changed, so the stored gold_db is not what they lead to"
                remedy = "Replay the evaluation instead: reward-kit agent-eval --agent replay:FILE."
                raise RewardError(fault, place=place, remedy=remedy)
            self.warn_once(f"{place}: its gold actions have changed since; gold_db is that of the former")
        if task.seed.key != base:
            self.warn_once(f"{place}: its seed has changed since; the stored databases begin with the former")


# --- storing


def was_decided(stored: EvaluationResult) -> bool:
    """True if it stopped once its comparison was decided, or is such a one judged again."""
    if (found := stored.decision) is not None:
        return found.is_final and found.round < found.rounds
    return bool("rescored_from" in stored.configuration and stored.configuration.get("until_decided"))


def store_rescoring(done: Rescoring, bundle: TaskBundle) -> Rescoring:
    """Store ``done`` under its new name, with the databases of the old; ``UsageError`` if that exists."""
    config, stored = done.config, done.stored
    assert config.eval_id is not None
    path = stored.log_path.with_stem(config.eval_id)
    counts = {row.row_id: row.planned for row in stored.rows}
    known = [task for task in bundle.tasks if task.row.id in counts]
    rows = {task.row.id: counts[task.row.id] for task in known}
    facts = replace(code_facts(known, bundle.folder, config), rows=rows)
    source = {"rescored_from": str(stored.log_path), "until_decided": was_decided(stored)}
    run = _as_played(make_run(config, bundle.read, facts), stored, tool_files(known) - {*facts.reward_files})
    # in one transaction: if it stopped halfway, a resumed run would play the other rollouts
    with reading(stored.log_path) as before, Store(path) as store, store.transaction() as connection:
        check_unused(path)
        store.begin_run(replace(run, configuration={**run.configuration, **source}))
        others = counts.keys() - {row.row.id for row in run.rows}  # as recorded
        gone = [row for row in before.execute(_READ_ROWS) if row[0] in others]
        connection.executemany(_ADD_ROW, gone)
        gold = before.execute(f"SELECT {_GOLD}, row_id FROM rows")  # noqa: S608
        connection.executemany(f"UPDATE rows SET ({_GOLD}) = (?, ?, ?, ?) WHERE row_id = ?", gold)  # noqa: S608
        own_gold = {one for (one,) in before.execute("SELECT rollout FROM states WHERE kind = 'gold'")}
        for rollout in done.rollouts:
            played = _rescored(rollout, before, stored.log_path, config.eval_id)
            store.add([played if rollout.before.id in own_gold else replace(played, gold_state=None)])
        store.add_usage("broken_off", stored.broken_off)
        status = "interrupted" if stored.status == "running" else stored.status
        store.end_run(status, f"judged again from {stored.log_path}", done.seconds)
    result = replace(read_evaluation(path), configuration={**config.to_json(), **source})
    result.write()
    return replace(done, written=result)


def check_unused(path: Path) -> None:
    """Raise ``UsageError`` if there is an evaluation at ``path`` already."""
    with reading(path) if path.exists() else nullcontext() as found:
        if found is not None and found.execute("SELECT 1 FROM evaluation").fetchone():
            fault, remedy = f"there is an evaluation {path.stem} already", "Choose another --eval-id."
            raise UsageError(fault, place=str(path.parent), remedy=remedy)


def _as_played(run: Run, stored: EvaluationResult, tools: Collection[str]) -> Run:
    """``run`` with the ``tools`` (their files), agent, user and rows with which the rollouts were played."""
    rows, recorded = [], read_fields(stored.log_path)
    for row in run.rows:
        before, was = stored.fingerprints[row.row.id], recorded[row.row.id]
        is_same = all(was.get(name) == row.fields.get(name) for name in PROMPTS)
        if is_same and before["seed"] == row.fingerprints["seed"]:
            kept = {name: before[name] for name in ("tools", "parallel_tool_calls") if name in before}
            rows.append(replace(row, fingerprints={**row.fingerprints, **kept}))
    now = {name: code for name, code in run.code.items() if name not in tools or name not in stored.code}
    return replace(run, code={**stored.code, **now}, toolsets=stored.toolsets, rows=rows)


def _rescored(rollout: Rejudged, before: sqlite3.Connection, file: Path, eval_id: str) -> Played:
    """The rollout of the evaluation in ``file`` with its new reward and a new id."""
    now, kept = rollout.now, rollout_at(file / rollout.before.id, before)
    record = StoredRollout(file, rollout.before.id, kept).read()
    record.id, record.eval_id = uuid.uuid4().hex, eval_id
    if now is not rollout.before:
        record.reward, record.result, record.error = now.reward, rollout.result, now.error
        record.violations, record.failure = now.violations, rollout.failure
    outcome = replace(now, id=record.id, file=f"evals/{eval_id}.db/{record.id}", database=kept.database)
    return Played(outcome, record.encoded(), kept.state, kept.gold)


async def judge_record(
    record: Trace,
    reward: Callable[..., Any],
    task: Task | None,
    *,
    rules: Sequence[Rule],
    timeout: float | None,
    retries: int,
    calls: list[ModelCall] | None = None,
) -> EvaluateResult | RewardOutput:
    """The result of ``reward`` on a stored rollout.

    The ``rules`` set the violations of ``record``. Each try gets a new record, with the fields of
    ``record``. ``task`` has the functions of its checks and its hidden tables. Model calls that the reward
    counts are added to ``calls``. Raises ``RewardError`` as ``judge`` does, ``StorageError`` and
    ``DatabaseError`` if the stored databases cannot be read.
    """
    stored = record.stored
    assert stored is not None, "it was read from an evaluation"
    stored = replace(stored, data=stored.data or rollout_at(stored.address))
    parts = record.fields, record.messages, record.tool_calls, record.user_messages
    record.violations = await asyncio.to_thread(violations_of, rules, *parts) if rules else None
    views: dict[str, Any] = {"is_async": takes_async_faces(reward)}
    if task is not None:
        views |= {"mode": task.registry.database, "hidden": task.hidden}

    async def judge_once() -> EvaluateResult | RewardOutput:
        with stored.read() as given:
            given.fields = copied(record.fields)
            given.violations = copied(record.violations)
            before = len(given.model_calls)
            arguments = given.reward_arguments(**views)
            try:
                with checking(task):
                    return await call_reward(reward, arguments, timeout=timeout)
            finally:
                if calls is not None:
                    calls.extend(given.model_calls[before:])

    return await judged_with_retries(judge_once, retries)
