"""Going on with rollouts whose reward failed: they are paid for, so they are judged again, not played."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from reward_kit.agent.bundles.loop_guard import own_tasks_guarded
from reward_kit.agent.database import Database
from reward_kit.agent.faults import fault_line
from reward_kit.agent.history import History
from reward_kit.agent.interruption import seen_through
from reward_kit.agent.limits import RolloutLimits
from reward_kit.agent.orchestrator import FinishedRollout, judged
from reward_kit.agent.outcome import total_usage
from reward_kit.agent.record_keeping import find_failure, find_faults, outcome_of, record_of
from reward_kit.agent.reports.wording import count
from reward_kit.agent.rescoring.judging import DAMAGED
from reward_kit.agent.rollout import Rollout
from reward_kit.agent.runs.atomic_file import write_file
from reward_kit.agent.runs.broken_off import BrokenOffLines
from reward_kit.agent.runs.broken_off import broken_off as broken_off_of
from reward_kit.agent.runs.rollout_record import load_rollout
from reward_kit.agent.runs.row_states import RowStates
from reward_kit.agent.schedule import run_jobs
from reward_kit.agent.tally import note
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Executor

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.calls import Role
    from reward_kit.agent.completion import Usage
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
        if not self._tally.may_start:
            return
        unjudged = self._opened.unjudged
        note(self._progress, f"{count(len(unjudged), 'rollout')} whose reward had failed: judged again")
        with ThreadPoolExecutor(2, thread_name_prefix="evaluation-files") as files:
            broken_off = BrokenOffLines(self._opened.log, files)
            try:
                await self._judge_all(unjudged, files, broken_off)
            finally:
                files.shutdown()
                broken_off.close(partial(note, self._progress))
                self._opened.broken_off.add(broken_off.total)

    async def _judge_all(
        self, unjudged: Sequence[tuple[Job, RolloutOutcome]], files: Executor, broken_off: BrokenOffLines
    ) -> None:
        jobs = [job for job, _ in unjudged]
        outcomes = {job.place: outcome for job, outcome in unjudged}
        rows = RowStates(self._opened.folder, self._config, jobs, files, partial(note, self._progress))

        async def judge(job: Job) -> None:
            row = await rows.of(job.task)
            await self._judge(job, row, outcomes[job.place], files, broken_off)
            rows.leave(job.task)

        try:
            with own_tasks_guarded():
                await run_jobs(
                    jobs,
                    judge,
                    concurrency=self._config.max_concurrency,
                    may_start=lambda: self._tally.may_start,
                )
        finally:
            await rows.close()

    async def _judge(
        self, job: Job, row: RowState, outcome: RolloutOutcome, files: Executor, broken_off: BrokenOffLines
    ) -> None:
        """Judge one and save it; what its reward has paid for is noted also where that comes to nothing."""
        spent: dict[Role, Usage] = {}
        saving: asyncio.Future[RolloutOutcome] | None = None
        try:
            saving = self._saving(await self._again(job.task, row, outcome, spent), outcome, files)
            self._progress.ended(await seen_through(saving), self._tally)
        except (DatabaseError, *DAMAGED) as error:  # of what was stored
            broken_off.add(broken_off_of(spent))
            note(self._progress, f"{outcome.file} cannot be judged again: {fault_line(error)}")
            self._tally.add(outcome)
        except BaseException:
            if saving is None or saving.exception() is not None:
                broken_off.add(broken_off_of(spent))
            raise

    async def _again(
        self, task: Task, row: RowState, outcome: RolloutOutcome, spent: dict[Role, Usage]
    ) -> RolloutRecord:
        """The record as it is judged now; ``spent`` is filled with what the reward has used meanwhile."""
        path = self._opened.folder.root / outcome.file
        record = load_rollout(path)
        assert record.database is not None, "only what was kept is judged again"
        with ExitStack() as opened:
            stored = opened.enter_context(Database.open(path.with_name(record.database), mode=row.base.mode))
            database = opened.enter_context(stored.fork(seed=record.seed, now=task.row.clock()))
            gold = await row.gold_for(task, record.seed)
            if gold is not None and gold is not row.gold:
                opened.callback(gold.database.close)
            rollout = restored(record, task, database, self._limits)
            before = len(rollout.model_calls)
            try:
                result, error = await judged(rollout, gold.database if gold else None, self._limits)
            finally:
                spent["judge"] = total_usage(call.usage for call in rollout.model_calls[before:])
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
            return self._record(finished, record, gold)

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

    def _saving(
        self, record: RolloutRecord, before: RolloutOutcome, files: Executor
    ) -> asyncio.Future[RolloutOutcome]:
        """Have it saved in a thread; it counts as soon as it is, whether or not anybody waits for it."""
        outcome = outcome_of(record, file=before.file, final=True, tool_faults=before.tool_faults)
        saving = asyncio.get_running_loop().run_in_executor(files, self._save, record, outcome)

        def saved(done: asyncio.Future[RolloutOutcome]) -> None:
            if done.cancelled() or done.exception() is not None:
                return
            self._opened.judged_again(outcome)
            self._tally.add(outcome)

        saving.add_done_callback(saved)
        return saving

    def _save(self, record: RolloutRecord, outcome: RolloutOutcome) -> RolloutOutcome:
        path = self._opened.folder.write_record(record, self._opened.folder.root / record.row_id)
        if self._config.debug:
            from reward_kit.agent.reports.transcript import transcript

            text = transcript(record).encode(errors="replace")
            write_file(path.with_suffix(".log"), text, durable=False)
        self._opened.log.append({"kind": "rollout", **outcome.to_json(), "judged": time.time()})
        return outcome


def restored(record: RolloutRecord, task: Task, database: Database, limits: RolloutLimits) -> Rollout:
    """A rollout as it was when it had been played, with its final state in ``database``."""
    rollout = Rollout(task, record.index, database=database, limits=limits, seed=record.seed)
    rollout.id = record.id
    rollout.history = History(record.messages)
    rollout.tool_calls = record.tool_calls
    rollout.model_calls = record.model_calls
    rollout.usage.update({role: replace(usage) for role, usage in record.usage.items()})  # type: ignore[misc]  # roles
    rollout.steps, rollout.turns = record.steps, record.turns
    rollout.stop_reason = record.stop_reason  # type: ignore[assignment]  # one of them
    rollout.stop_detail = record.stop_detail
    return rollout
