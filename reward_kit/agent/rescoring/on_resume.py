"""Going on with rollouts whose reward failed: they are paid for, so they are judged again, not played."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING

from reward_kit.agent.database import Database
from reward_kit.agent.history import History
from reward_kit.agent.interruption import seen_through
from reward_kit.agent.limits import RolloutLimits
from reward_kit.agent.orchestrator import FinishedRollout, judged
from reward_kit.agent.record_keeping import find_failure, find_faults, outcome_of, record_of
from reward_kit.agent.reports.wording import count
from reward_kit.agent.rollout import Rollout
from reward_kit.agent.runs.gold_state import replay_row_gold
from reward_kit.agent.runs.rollout_record import load_rollout
from reward_kit.agent.runs.row_states import RowStates
from reward_kit.agent.schedule import run_jobs
from reward_kit.agent.tally import note

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.participants import Participants
    from reward_kit.agent.runs.gold_state import GoldState
    from reward_kit.agent.runs.open_evaluation import OpenEvaluation
    from reward_kit.agent.runs.rollout_record import RolloutRecord
    from reward_kit.agent.runs.row_states import RowState
    from reward_kit.agent.schedule import Job
    from reward_kit.agent.tally import Progress, Tally


class Rejudging:
    """Judges again what ``opened`` has ``unjudged``, on the stored messages and databases.

    The trajectory is written anew, and a line of the log takes the place of the former: after that it is as
    if the reward had not failed the first time.
    """

    def __init__(
        self,
        config: EvaluationConfig,
        opened: OpenEvaluation,
        participants: Participants,
        tally: Tally,
        progress: Progress,
    ) -> None:
        self._config = config
        self._opened = opened
        self._participants = participants
        self._tally = tally
        self._progress = progress
        self._limits = RolloutLimits(budget=tally.spending, reward_retries=config.retries)

    async def run(self) -> None:
        """Judge all of them; those whose reward fails again stay unjudged.

        Raises ``StorageError`` where nothing can be written, ``DatabaseError`` and ``BundleError`` for a
        faulty base.
        """
        unjudged = self._opened.unjudged
        note(self._progress, f"{count(len(unjudged), 'rollout')} whose reward had failed: judged again")
        with ThreadPoolExecutor(1, thread_name_prefix="evaluation-files") as files:
            await self._judge_all(unjudged, files)

    async def _judge_all(self, unjudged: Sequence[tuple[Job, RolloutOutcome]], files: Executor) -> None:
        jobs = [job for job, _ in unjudged]
        outcomes = {job.place: outcome for job, outcome in unjudged}
        rows = RowStates(self._opened.folder, self._config, jobs, files, partial(note, self._progress))

        async def judge(job: Job) -> None:
            row = await rows.of(job.task)
            outcome = await self._again(job.task, row, outcomes[job.place])
            rows.leave(job.task)
            self._opened.judged_again(outcome)
            self._tally.add(outcome)
            self._progress.ended(outcome, self._tally)

        try:
            await run_jobs(
                jobs,
                judge,
                concurrency=self._config.max_concurrency,
                may_start=lambda: self._tally.may_start,
            )
        finally:
            await rows.close()

    async def _again(self, task: Task, row: RowState, outcome: RolloutOutcome) -> RolloutOutcome:
        path = self._opened.folder.root / outcome.file
        record = load_rollout(path)
        assert record.database is not None, "only what was kept is judged again"
        with ExitStack() as opened:
            stored = opened.enter_context(Database.open(path.with_name(record.database)))
            database = opened.enter_context(stored.fork(seed=record.seed, now=task.row.clock()))
            gold = row.gold
            if gold is not None and not gold.shared:
                gold = await replay_row_gold(task, row.base, seed=record.seed)
                opened.callback(gold.database.close)
            rollout = restored(record, task, database, self._limits)
            result, error = await judged(rollout, gold.database if gold else None, self._limits)
            finished = FinishedRollout(
                rollout=rollout,
                reward=None if result is None else float(result.score),
                result=result,
                error=error,
                started=record.started,
                seconds=record.seconds,
                database=database,
                gold=gold.database.changes() if gold else None,
            )
            again = self._record(finished, record, gold)
        saved = outcome_of(again, file=outcome.file, final=True, tool_faults=outcome.tool_faults)
        await seen_through(asyncio.ensure_future(asyncio.to_thread(self._save, again, saved)))
        return saved

    def _record(
        self, finished: FinishedRollout, record: RolloutRecord, gold: GoldState | None
    ) -> RolloutRecord:
        faults = find_faults(finished, record.user)
        again = record_of(
            finished,
            attempt=record.attempt,
            eval_id=record.eval_id,
            participants=self._participants,
            failure=find_failure(finished, gold, faults or ()),
            faults=faults,
            database=record.database,
            gold_database=record.gold_database,
        )
        again.offered_tools = record.offered_tools
        return again

    def _save(self, record: RolloutRecord, outcome: RolloutOutcome) -> None:
        folder = self._opened.folder.root / record.row_id
        self._opened.folder.write_record(record, folder)
        self._opened.log.append({"kind": "rollout", **outcome.to_json()})


def restored(record: RolloutRecord, task: Task, database: Database, limits: RolloutLimits) -> Rollout:
    """A rollout as it was when it had been played, with its final state in ``database``."""
    rollout = Rollout(task, record.index, database=database, limits=limits, seed=record.seed)
    rollout.id = record.id
    rollout.history = History(record.messages)
    rollout.tool_calls = record.tool_calls
    rollout.model_calls = record.model_calls
    rollout.usage.update(record.usage)  # type: ignore[arg-type]  # the keys are roles
    rollout.steps, rollout.turns = record.steps, record.turns
    rollout.stop_reason = record.stop_reason  # type: ignore[assignment]  # one of them
    rollout.stop_detail = record.stop_detail
    return rollout
