"""Outcomes of rollouts as rows of the table ``rollouts``."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.strict_json import compact_json
from reward_kit.agent.base.types import Usage
from reward_kit.agent.records.evaluation_file import checked_id, checked_row_id, sqlite_faults
from reward_kit.agent.records.outcome import RolloutOutcome
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.records.played import PlayedRollout

FINAL = "seq IN (SELECT max(seq) FROM rollouts WHERE final GROUP BY row_id, idx)"
"""Of each rollout the last final attempt, which is the one that counts."""


def columns(played: PlayedRollout, run: int) -> dict[str, Any]:
    """The columns of an attempt, by name."""
    outcome = played.outcome
    tokens, cost = totals(outcome.usage)
    return {
        "id": outcome.id,
        "run": run,
        "row_id": outcome.row_id,
        "idx": outcome.index,
        "attempt": outcome.attempt,
        "final": int(outcome.final),
        "seed": outcome.seed,
        "reward": outcome.reward,
        "stop_reason": outcome.stop_reason,
        "stop_detail": storable(outcome.stop_detail),
        "error": storable(outcome.error),
        "failure": outcome.failure,
        "failure_detail": storable(outcome.failure_detail),
        "failure_step": outcome.failure_step,
        "steps": outcome.steps,
        "turns": outcome.turns,
        "turn_of_success": outcome.turn_of_success,
        "tokens": tokens,
        "cost": cost,
        "started": outcome.started,
        "seconds": outcome.seconds,
        "model_seconds": outcome.model_seconds,
        "waited_seconds": outcome.waited_seconds,
        "timed_calls": outcome.timed_calls,
        "usage": as_json(outcome.usage),
        "user_faults": None if outcome.user_faults is None else as_json(outcome.user_faults),
        "tool_faults": None if outcome.tool_faults is None else as_json(outcome.tool_faults),
        "metrics": None if outcome.metrics is None else as_json(outcome.metrics),
        "base": played.base,
        "file": outcome.database,
        "judged": played.judged,
    }


def read_outcomes(
    connection: sqlite3.Connection, path: Path, where: str = "1", values: Sequence[object] = ()
) -> Iterator[RolloutOutcome]:
    """The stored attempts that ``where`` (SQL of this package) selects, in the order of storing.

    Raises ``StorageError`` for a damaged row.
    """
    with sqlite_faults(path):
        cursor = connection.cursor()
        cursor.row_factory = sqlite3.Row
        for row in cursor.execute(f"SELECT * FROM rollouts WHERE {where} ORDER BY seq", values):  # noqa: S608
            yield _outcome(row, path)


def _outcome(row: sqlite3.Row, path: Path) -> RolloutOutcome:
    rollout = checked_id(row["id"], path)
    try:
        return RolloutOutcome(
            id=rollout,
            row_id=checked_row_id(row["row_id"], path),
            index=row["idx"],
            attempt=row["attempt"],
            final=bool(row["final"]),
            seed=row["seed"],
            reward=row["reward"],
            stop_reason=row["stop_reason"],
            stop_detail=row["stop_detail"],
            error=row["error"],
            failure=row["failure"],
            failure_detail=row["failure_detail"],
            failure_step=row["failure_step"],
            steps=row["steps"],
            turns=row["turns"],
            turn_of_success=row["turn_of_success"],
            started=row["started"],
            seconds=row["seconds"],
            model_seconds=row["model_seconds"],
            waited_seconds=row["waited_seconds"],
            timed_calls=row["timed_calls"],
            usage=usage_from(row["usage"]),
            user_faults=_from_json(row["user_faults"]),
            tool_faults=_from_json(row["tool_faults"]),
            metrics=_from_json(row["metrics"]),
            file=f"evals/{path.name}/{rollout}",
            database=row["file"],
        )
    except (TypeError, ValueError) as error:
        raise StorageError(f"rollout {rollout} is damaged: {error}", place=str(path)) from error


def usage_from(text: str) -> dict[str, Usage]:
    """Usage by role from its JSON text; raises ``TypeError`` or ``ValueError`` for anything else."""
    return {role: Usage(**usage) for role, usage in json.loads(text).items()}


def _from_json(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def totals(usage: Mapping[str, Usage]) -> tuple[int, float]:
    """Tokens and cost of all roles."""
    used = usage.values()
    return sum(one.input_tokens + one.output_tokens for one in used), sum(one.cost for one in used)


def storable(value: str | None) -> str | None:
    """``value`` with halves of surrogate pairs escaped, which SQLite does not take."""
    return None if value is None else value.encode("utf-8", "backslashreplace").decode("utf-8")


def as_json(value: Any) -> str:
    """``value`` as JSON text."""
    return compact_json(value).decode("utf-8")
