"""The record of a rollout of which nothing is left, because the process that played it died."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from reward_kit.agent.redaction import without_password
from reward_kit.agent.runs.rollout_record import RolloutRecord
from reward_kit.agent.schedule import rollout_seed

if TYPE_CHECKING:
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.participants import Participants
    from reward_kit.agent.schedule import Job


def lost_record(
    job: Job, attempt: int, why: str, *, config: EvaluationConfig, participants: Participants
) -> RolloutRecord:
    """A record that says ``why`` there is no more to say; the rollout could not be judged."""
    row = job.task.row
    return RolloutRecord(
        id=uuid.uuid4().hex,
        row_id=row.id,
        index=job.index,
        attempt=attempt,
        seed=rollout_seed(config.seed, row.id, job.index, attempt),
        eval_id=config.eval_id or "",
        agent=without_password(participants.agent_spec),
        user=participants.user_specs[row.id],
        models={role: model.name for role, model in participants.models.items()},
        fields=row.reward_fields(),
        messages=[],
        tool_calls=[],
        model_calls=[],
        usage={},
        steps=0,
        turns=0,
        stop_reason="infrastructure_error",
        stop_detail=why,
        reward=None,
        result=None,
        error=None,
        failure={"kind": "infrastructure_error", "detail": why},
        started=time.time(),
        seconds=0.0,
        base=job.task.seed.key,
        database=None,
        gold_database=None,
    )
