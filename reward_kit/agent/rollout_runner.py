"""Playing the rollouts of an evaluation one by one: seed, attempts, classification, saving."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from reward_kit.agent.interruption import seen_through
from reward_kit.agent.limits import FirstAnswers, OwnBudget
from reward_kit.agent.model_cache import models_of_rollout
from reward_kit.agent.orchestrator import FinishedRollout, RolloutLimits, run_rollout
from reward_kit.agent.outcome import UNJUDGED_STOPS, RolloutOutcome
from reward_kit.agent.providers.caller import Caller, asking
from reward_kit.agent.record_keeping import find_failure, find_faults, outcome_of, record_of, tool_faults_of
from reward_kit.agent.runs.broken_off import broken_off
from reward_kit.agent.runs.group_commit import Finished
from reward_kit.agent.runs.parcels import NewFile, Parcel
from reward_kit.agent.schedule import Job, backoff, rollout_seed
from reward_kit.agent.storage import FULL_UP_TO, final_state, record_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from reward_kit.agent.completion import Usage
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.own_models import CallTimeout
    from reward_kit.agent.participants import Participants
    from reward_kit.agent.rollout import Role
    from reward_kit.agent.runs.broken_off import BrokenOffLines
    from reward_kit.agent.runs.gold_state import GoldState
    from reward_kit.agent.runs.group_commit import GroupCommit
    from reward_kit.agent.runs.rollout_record import RolloutRecord
    from reward_kit.agent.runs.row_states import RowState, RowStates
    from reward_kit.agent.storage import RunsFolder
    from reward_kit.agent.tally import Progress, Tally
    from reward_kit.agent.telemetry import Telemetry


class RolloutRunner:
    """Plays jobs and saves what comes of them; ``outcomes`` grows as rollouts reach the disk."""

    def __init__(
        self,
        *,
        config: EvaluationConfig,
        participants: Participants,
        folder: RunsFolder,
        rows: RowStates,
        saver: GroupCommit,
        broken_off: BrokenOffLines,
        tally: Tally,
        progress: Progress,
        call_timeouts: Mapping[Role, CallTimeout] | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.outcomes: list[RolloutOutcome] = []
        self.recordings = participants.recordings
        self._config = config
        self._participants = participants
        self._folder = folder
        self._rows = rows
        self._saver = saver
        self._broken_off = broken_off
        self._tally = tally
        self._progress = progress
        self._models = participants.models
        self._limits = RolloutLimits(
            max_steps=config.max_steps,
            own_budget=_own_budget(config),
            timeout=config.timeout,
            reward_retries=config.retries,
            budget=tally.spending,
            parallel_tool_calls=config.parallel_tool_calls,
            first_answers=FirstAnswers(),
            call_timeouts=call_timeouts or {},
        )
        self._chance = random.Random()  # noqa: S311 - spreads retries in time; must not repeat
        self._telemetry = telemetry

    async def play(self, job: Job) -> None:
        """Play one rollout until it is judged or out of attempts, and save every attempt.

        Raises ``ModelSetupError`` where a model refuses the whole configuration, ``StorageError`` where
        nothing can be written, ``DatabaseError`` and ``BundleError`` for a faulty base.
        """
        row = await self._rows.of(job.task)
        with asking(self._caller(job)):
            await self._play(job, row)
        self._rows.leave(job.task)

    def _caller(self, job: Job) -> Caller:
        """Where all rollouts are of one row, it cannot be what tells a fault of its own from all others'."""
        only_row = len(self._participants.user_specs) == 1
        return Caller(job.place, job.place if only_row else job.task.row.id)

    async def _play(self, job: Job, row: RowState) -> None:
        left = _Retries(self._config.retries, self._config.retry_user_errors)
        if self.recordings is not None:
            left = _Retries(0, 0)  # a recording comes out the same every time
        attempt = 0
        while not (outcome := await self._attempt(job, row, attempt, left)).final:
            attempt += 1
            if outcome.stop_reason in UNJUDGED_STOPS:
                left.unjudged -= 1
                await asyncio.sleep(backoff(self._config.retries - left.unjudged, self._chance))
            else:
                left.user_faults -= 1

    async def _attempt(self, job: Job, row: RowState, attempt: int, left: _Retries) -> RolloutOutcome:
        """Play once; the outcome is not final if it is to be tried again."""
        seed = self._participants.recorded_seed(job.task.row.id, job.index)
        if seed is None:
            seed = rollout_seed(self._config.seed, job.task.row.id, job.index, attempt)
        gold = await row.gold_for(job.task, seed)
        try:
            finished = await self._played(job, row, gold, attempt, seed)
            outcome = await self._saved(finished, row, gold, attempt, left)
        finally:
            if gold is not None and gold is not row.gold:
                gold.database.close()
        self._tally.add(outcome)
        self._progress.ended(outcome, self._tally)
        return outcome

    async def _played(
        self, job: Job, row: RowState, gold: GoldState | None, attempt: int, seed: int
    ) -> FinishedRollout:
        """Play to the end; what it has used is noted where it comes to none."""
        usage: dict[Role, Usage] = {}
        try:
            finished = await run_rollout(
                job.task,
                job.index,
                base=row.base,
                agent=self._participants.make_agent(),
                user=self._participants.user(job.task),
                models=models_of_rollout(self._models, job.index, attempt),
                limits=replace(self._limits, usage=usage),
                seed=seed,
                gold_database=gold.database if gold else None,
            )
        except BaseException:
            self._broken_off.add(broken_off(usage))
            raise
        if finished.setup_error is not None:
            finished.database.close()
            self._broken_off.add(broken_off(usage))
            raise finished.setup_error
        return finished

    async def _saved(
        self, finished: FinishedRollout, row: RowState, gold: GoldState | None, attempt: int, left: _Retries
    ) -> RolloutOutcome:
        """Save to the end, even if the evaluation is interrupted meanwhile."""
        quick = _is_quickly_read(finished, row, gold)
        write_down = partial(self._written_down, finished, row, gold, attempt, left, quick=quick)
        saving = self._saver.save(write_down, is_quick=quick)
        try:
            return await seen_through(saving)
        except (Exception, asyncio.CancelledError):
            if saving.exception() is not None:
                self._broken_off.add(broken_off(finished.rollout.usage))
            raise

    def _written_down(
        self,
        finished: FinishedRollout,
        row: RowState,
        gold: GoldState | None,
        attempt: int,
        left: _Retries,
        *,
        quick: bool,
    ) -> Finished[RolloutOutcome]:
        """The final database, the trajectory and the line of the log.

        Where that is not ``quick``, this may write files into the row's folder itself.
        """
        task = finished.rollout.task
        new_folder = self._folder.new_row_folder(task)
        folder = self._folder.root / task.row.id
        if new_folder is not None and not quick:
            new_folder.make()
        stem = folder / f"roll_{finished.rollout.id}"
        files: list[NewFile] = []
        with finished.database:
            faults = find_faults(finished, self._participants.user_specs[finished.rollout.row.id])
            failure = find_failure(finished, gold, faults or ())
            database, gold_file = _final_states(finished, row, gold, stem, files)
        record = record_of(
            finished,
            attempt=attempt,
            eval_id=self._tally.eval_id,
            participants=self._participants,
            failure=failure,
            faults=faults,
            database=database,
            gold_database=gold_file,
        )
        trajectory = record_file(record, folder)
        files.append(trajectory)
        if self._config.debug:
            from reward_kit.agent.reports.transcript import transcript

            text = transcript(record).encode(errors="replace")
            files.append(NewFile(stem.with_suffix(".log"), (text,), durable=False))
        outcome = outcome_of(
            record,
            file=f"{folder.name}/{trajectory.path.name}",
            final=not self._again(record, left),
            tool_faults=tool_faults_of(finished.rollout),
        )

        def then() -> RolloutOutcome:
            self._folder.row_folder_made(task)
            self.outcomes.append(outcome)
            if self._telemetry is not None:
                self._telemetry.record(record)
            return outcome

        return Finished({"kind": "rollout", **outcome.to_json()}, then, Parcel(files, new_folder))

    def _again(self, record: RolloutRecord, left: _Retries) -> bool:
        """Whether to play it again: for what its surroundings or its user did, not for its reward."""
        if record.stop_reason in UNJUDGED_STOPS:
            return left.unjudged > 0
        decisive = any(fault["decisive"] for fault in record.user_faults or ())
        return decisive and left.user_faults > 0 and self._tally.may_start


def _own_budget(config: EvaluationConfig) -> OwnBudget | None:
    tokens, cost = config.max_rollout_tokens, config.max_rollout_cost
    if tokens is None and cost is None:
        return None
    return OwnBudget(inf if tokens is None else tokens, inf if cost is None else cost)


def _final_states(
    finished: FinishedRollout, row: RowState, gold: GoldState | None, stem: Path, files: list[NewFile]
) -> tuple[str | None, str | None]:
    """Add the final states that are kept to the ``files`` of a rollout.

    Returns their names: of its own state, and of the one that the gold actions lead to.
    """
    if row.keep is None:
        return None, None
    database = final_state(finished.database, stem, row.keep, files)
    if gold is None or gold.file is not None:
        return database, gold.file if gold else None
    return database, final_state(gold.database, stem.with_name(f"{stem.name}.gold"), "delta", files)


def _is_quickly_read(finished: FinishedRollout, row: RowState, gold: GoldState | None) -> bool:
    """Whether the final state can be read without a wait: it is small, and nothing is using it.

    Rewards and tools that took too long are left behind, perhaps in the midst of a query.
    """
    if row.base.mode != "overlay" or row.base.base_size > FULL_UP_TO:
        return False
    return finished.database.is_idle and (gold is None or gold.database.is_idle)


@dataclass(slots=True)
class _Retries:
    """What a rollout has left: after attempts that could not be judged, and after faults of its user."""

    unjudged: int
    user_faults: int
