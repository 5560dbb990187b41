"""The columns of an exported rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.strict_json import as_json
from reward_kit.agent.exporting.formats import OPENAI_COLUMNS, Format, conversation
from reward_kit.agent.records.loading import load_rollout
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.storage.stored_evaluation import StoredEvaluation

COLUMNS = (
    "messages",
    "tools",
    "parallel_tool_calls",
    "reward",
    "metrics",
    "reason",
    "row_rewards",
    "row_id",
    "rollout",
    "eval_id",
    "id",
    "model",
    "agent",
    "user",
    "seed",
    "stop_reason",
    "stop_detail",
    "error",
    "failure",
    "user_faults",
    "steps",
    "turns",
    "opening",
    "seconds",
    "model_seconds",
    "waited_seconds",
    "usage",
    "file",
)


def columns_of(layout: Format) -> tuple[str, ...]:
    """The columns that lines of a format can have."""
    return OPENAI_COLUMNS if layout == "openai" else COLUMNS


def line_of(
    stored: StoredEvaluation, outcome: RolloutOutcome, row_rewards: Sequence[float], layout: Format
) -> dict[str, Any] | None:
    """All columns of a rollout; None where it is for training and the agent says and calls nothing.

    Raises ``StorageError`` where the trajectory cannot be read.
    """
    path = stored.folder / outcome.file
    try:
        record = load_rollout(path)
        opening = record.opening
        messages = conversation(record.messages, opening, layout)
        if messages is None:
            return None
        result = record.result or {}
        read = {
            "messages": messages,
            "metrics": record.metric_scores,
            "reason": result.get("reason"),
            "model": record.models.get("agent"),
            "agent": record.agent,
            "user": record.user,
            "opening": opening,
        }
    except StorageError as error:
        remedy = f"reward-kit agent-eval --resume {stored.eval_id} plays a lost rollout again."
        raise StorageError(error.fault, place=error.place, remedy=error.remedy or remedy) from error
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StorageError(f"is a damaged record of a rollout: {error!r}", place=str(path)) from error
    known = {**_logged(stored, outcome), **read, "row_rewards": list(row_rewards)}
    return {name: known[name] for name in COLUMNS}


def _logged(stored: StoredEvaluation, outcome: RolloutOutcome) -> dict[str, Any]:
    """What the log tells of a rollout."""
    return {
        "tools": stored.tools_of(outcome.row_id),
        "parallel_tool_calls": stored.parallel_tool_calls(outcome.row_id),
        "reward": outcome.reward,
        "row_id": outcome.row_id,
        "rollout": outcome.index,
        "eval_id": stored.eval_id,
        "id": outcome.id,
        "seed": outcome.seed,
        "stop_reason": outcome.stop_reason,
        "stop_detail": outcome.stop_detail,
        "error": outcome.error,
        "failure": outcome.failure,
        "user_faults": outcome.user_faults,
        "steps": outcome.steps,
        "turns": outcome.turns,
        "seconds": outcome.seconds,
        "model_seconds": outcome.model_seconds,
        "waited_seconds": outcome.waited_seconds,
        "usage": {role: as_json(usage) for role, usage in outcome.usage.items()} or None,
        "file": outcome.file,
    }
