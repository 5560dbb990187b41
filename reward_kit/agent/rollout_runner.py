"""Playing the rollouts of an evaluation one by one: seed, attempts, classification, saving."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

from reward_kit.agent.failures import Failure, classify_failure
from reward_kit.agent.metrics import is_success
from reward_kit.agent.orchestrator import FinishedRollout, RolloutLimits, run_rollout
from reward_kit.agent.outcome import UNJUDGED_STOPS, RolloutOutcome, replies, turn_of_success
from reward_kit.agent.runs.atomic_file import write_file
from reward_kit.agent.runs.gold_state import replay_row_gold
from reward_kit.agent.runs.rollout_record import RolloutRecord
from reward_kit.agent.schedule import Job, backoff, rollout_seed
from reward_kit.agent.storage import save_database

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Executor

    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.participants import Participants
    from reward_kit.agent.runs.evaluation_log import EvaluationLog
    from reward_kit.agent.runs.gold_state import GoldState
    from reward_kit.agent.runs.row_states import RowState, RowStates
    from reward_kit.agent.storage import RunsFolder
    from reward_kit.agent.tally import Progress, Tally


class RolloutRunner:
    """Plays jobs and saves what comes of them; ``outcomes`` grows as rollouts reach the disk."""

    def __init__(
        self,
        *,
        config: EvaluationConfig,
        participants: Participants,
        folder: RunsFolder,
        rows: RowStates,
        log: EvaluationLog,
        tally: Tally,
        progress: Progress,
        files: Executor,
    ) -> None:
        self.outcomes: list[RolloutOutcome] = []
        self._config = config
        self._participants = participants
        self._folder = folder
        self._rows = rows
        self._log = log
        self._tally = tally
        self._progress = progress
        self._models = participants.models
        self._limits = RolloutLimits(
            max_steps=config.max_steps,
            timeout=config.timeout,
            budget=tally.spending,
            parallel_tool_calls=config.parallel_tool_calls,
        )
        self._chance = random.Random()  # noqa: S311 - spreads retries in time; must not repeat
        self._files = files

    async def play(self, job: Job) -> None:
        """Play one rollout until it is judged or out of attempts, and save every attempt.

        Raises ``ModelSetupError`` where a model refuses the whole configuration, ``StorageError`` where
        nothing can be written, ``DatabaseError`` and ``BundleError`` for a faulty base.
        """
        row = await self._rows.of(job.task)
        for attempt in range(self._config.retries + 1):
            if attempt:
                await asyncio.sleep(backoff(attempt, self._chance))
            if not await self._attempt(job, row, attempt):
                break
        self._rows.leave(job.task)

    async def _attempt(self, job: Job, row: RowState, attempt: int) -> bool:
        """Play once; whether it is to be tried again."""
        seed = rollout_seed(self._config.seed, job.task.row.id, job.index, attempt)
        gold = await self._gold_for(job, row, seed)
        try:
            finished = await run_rollout(
                job.task,
                job.index,
                base=row.base,
                agent=self._participants.make_agent(),
                user=self._participants.user(job.task),
                models=self._models,
                limits=self._limits,
                seed=seed,
                gold_database=gold.database if gold else None,
            )
            if finished.setup_error is not None:
                finished.database.close()
                raise finished.setup_error
            again = finished.rollout.stop_reason in UNJUDGED_STOPS and attempt < self._config.retries
            outcome = await self._saved(finished, row, gold, attempt, final=not again)
        finally:
            if gold is not None and gold is not row.gold:
                gold.database.close()
        self._tally.add(outcome)
        self._progress.ended(outcome, self._tally)
        return again

    async def _gold_for(self, job: Job, row: RowState, seed: int) -> GoldState | None:
        """The row's gold state, or one of the rollout's own where random numbers are part of it."""
        if row.gold is None or row.gold.shared:
            return row.gold
        return await replay_row_gold(job.task, row.base, seed=seed)

    async def _saved(
        self, finished: FinishedRollout, row: RowState, gold: GoldState | None, attempt: int, *, final: bool
    ) -> RolloutOutcome:
        """Save in a thread, and to the end even if the evaluation is interrupted meanwhile."""
        loop = asyncio.get_running_loop()
        saving = loop.run_in_executor(self._files, self._save, finished, row, gold, attempt, final)
        try:
            return await asyncio.shield(saving)
        except asyncio.CancelledError:
            await asyncio.wait({saving})
            saving.exception()  # seen: this was cancelled by the same fault, or by a person
            raise

    def _save(
        self, finished: FinishedRollout, row: RowState, gold: GoldState | None, attempt: int, final: bool
    ) -> RolloutOutcome:
        """Write the final database, the trajectory and, when both are there, the line of the log."""
        with finished.database:
            failure = _failure(finished, gold)
            stem = row.folder / f"roll_{finished.rollout.id}"
            database = gold_file = None
            if row.keep is not None:
                database = save_database(finished.database, stem, keep=row.keep)
                gold_file = gold.file if gold else None
                if gold is not None and gold_file is None:
                    gold_file = save_database(
                        gold.database, stem.with_name(f"{stem.name}.gold"), keep="delta"
                    )
        record = self._record(finished, attempt, failure, database, gold_file)
        path = self._folder.write_record(record, row.folder)
        if self._config.debug:
            from reward_kit.agent.reports.transcript import transcript

            write_file(path.with_suffix(".log"), transcript(record).encode(errors="replace"), durable=False)
        outcome = _outcome(finished, record, file=f"{row.folder.name}/{path.name}", final=final)
        self._log.append({"kind": "rollout", **outcome.to_json()})
        self.outcomes.append(outcome)
        return outcome

    def _record(
        self,
        finished: FinishedRollout,
        attempt: int,
        failure: Failure | None,
        database: str | None,
        gold_database: str | None,
    ) -> RolloutRecord:
        rollout = finished.rollout
        return RolloutRecord(
            id=rollout.id,
            row_id=rollout.row.id,
            index=rollout.index,
            attempt=attempt,
            seed=rollout.seed,
            eval_id=self._tally.eval_id,
            agent=self._participants.agent_spec,
            user=self._participants.user_specs[rollout.row.id],
            models={role: model.name for role, model in self._models.items()},
            fields=rollout.row.reward_fields(),
            messages=rollout.messages,
            tool_calls=rollout.tool_calls,
            model_calls=rollout.model_calls,
            usage={role: usage for role, usage in rollout.usage.items() if usage.calls},
            steps=rollout.steps,
            turns=rollout.turns,
            stop_reason=_stop_reason(finished),
            stop_detail=rollout.stop_detail,
            reward=finished.reward,
            result=_plain_result(finished.result),
            error=finished.error,
            failure={"kind": failure.kind, "detail": failure.detail} if failure else None,
            started=finished.started,
            seconds=finished.seconds,
            base=rollout.task.seed.key,
            database=database,
            gold_database=gold_database,
        )


def _stop_reason(finished: FinishedRollout) -> str:
    reason = finished.rollout.stop_reason
    assert reason is not None, "a finished rollout has stopped"
    return reason


def _opening_length(finished: FinishedRollout) -> int:
    task = finished.rollout.task
    return len(task.row.initial_messages) + (task.system_prompt is not None)


def _failure(finished: FinishedRollout, gold: GoldState | None) -> Failure | None:
    """The class of what went wrong; None for a success, and where the reward itself failed."""
    rollout = finished.rollout
    if finished.reward is None and rollout.stop_reason not in UNJUDGED_STOPS:
        return None
    if finished.reward is not None and is_success(finished.reward):
        return None
    differences = None
    if finished.gold is not None and finished.reward is not None:
        differences = finished.database.changes().describe(finished.gold)
    return classify_failure(
        stop_reason=_stop_reason(finished),
        stop_detail=rollout.stop_detail,
        tool_calls=rollout.tool_calls,
        expected=gold.expected if gold else (),
        differences=differences,
        outputs=rollout.outputs,
        said=replies(rollout.messages, _opening_length(finished)),
    )


def _plain_result(result: Any) -> dict[str, Any] | None:
    """What the reward returned, as JSON values."""
    if result is None:
        return None
    plain: dict[str, Any] = result.to_dict() if hasattr(result, "to_dict") else result.model_dump()
    return plain


def _outcome(finished: FinishedRollout, record: RolloutRecord, *, file: str, final: bool) -> RolloutOutcome:
    success_turn = None
    if record.reward is not None and is_success(record.reward):
        changed = (call.turn for call in record.tool_calls if call.changes)
        success_turn = turn_of_success(
            record.messages, _opening_length(finished), changed, finished.rollout.outputs
        )
    failure: Mapping[str, str] = record.failure or {}
    return RolloutOutcome(
        id=record.id,
        row_id=record.row_id,
        index=record.index,
        attempt=record.attempt,
        final=final,
        seed=record.seed,
        reward=record.reward,
        stop_reason=record.stop_reason,
        stop_detail=record.stop_detail,
        error=record.error,
        failure=failure.get("kind"),
        failure_detail=failure.get("detail"),
        steps=record.steps,
        turns=record.turns,
        turn_of_success=success_turn,
        started=record.started,
        seconds=record.seconds,
        model_seconds=sum(call.seconds for call in record.model_calls),
        file=file,
        usage=record.usage,
    )
