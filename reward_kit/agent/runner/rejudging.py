"""Judging a stored rollout again whose reward failed: it is paid for, so it is not played again."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.types import Usage
from reward_kit.agent.records.loading import load_rollout
from reward_kit.agent.records.outcome import PlayedRollout, total_usage
from reward_kit.agent.rescoring.judging import DAMAGED, judge_record
from reward_kit.agent.rollout.budgets import RolloutLimits
from reward_kit.agent.scoring.failures.classify import classify
from reward_kit.agent.scoring.record_keeping import outcome_of, plain_result
from reward_kit.errors import DatabaseError, RewardError, StorageError

if TYPE_CHECKING:
    from pathlib import Path

    from reward_kit.agent.base.types import ModelCall
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.records.rollout_record import RolloutRecord
    from reward_kit.agent.runner.row_states import RowState


async def judge_again(
    evaluation: Path, rollout: str, task: Task, row: RowState, *, retries: int, calls: list[ModelCall]
) -> tuple[RolloutRecord, PlayedRollout]:
    """Judge a rollout on its stored messages and final state, as if its reward had not failed before.

    ``evaluation`` is the file of the evaluation, ``rollout`` the id; ``calls`` receives the model calls of
    the reward, also if this fails. Raises ``DatabaseError`` if what is stored is damaged.
    """
    try:
        record = load_rollout(evaluation / rollout)
        await _judge(record, task, retries, calls)
        await _classify(record, task, row)
    except (StorageError, DatabaseError, *DAMAGED) as error:
        raise DatabaseError(f"cannot be judged again: {fault_line(error)}", place=rollout) from error
    outcome = outcome_of(record, final=True)
    return record, PlayedRollout(outcome, record.encoded(), record.base, judged=time.time())


async def _judge(record: RolloutRecord, task: Task, retries: int, calls: list[ModelCall]) -> None:
    """Set the reward of the record, or its error."""
    record.reward = record.result = record.error = None
    try:
        result = await judge_record(
            record,
            task.reward,
            mode=task.registry.database,
            timeout=RolloutLimits().reward_timeout,
            retries=retries,
            calls=calls,
        )
        record.reward, record.result = float(result.score), plain_result(result)
    except RewardError as error:
        record.error = str(error)
    record.model_calls += calls
    if calls:
        record.usage.setdefault("judge", Usage()).add(total_usage(call.usage for call in calls))


async def _classify(record: RolloutRecord, task: Task, row: RowState) -> None:
    assert record.stored is not None, "it was read from the evaluation"
    with ExitStack() as opened:
        final = record.stored.open("final", "overlay", opened)
        assert final is not None, "only what was kept is judged again"
        gold = await row.gold_for(task, record.seed)
        if gold is not None and gold is not row.gold:
            opened.callback(gold.database.close)
        classify(
            record,
            task.reward,
            changes=final.changes(),
            gold=gold.database.changes() if gold else None,
            expected=gold.expected if gold else (),
            gold_fault=gold.fault if gold else None,
        )
