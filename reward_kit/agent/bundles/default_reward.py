"""The reward of a bundle without ``reward.py``: the row's ``end_goal_sql`` decides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reward_kit.models import EvaluateResult


def end_goal_reward(messages: Any, *, db: Any, end_goal_sql: str, **kwargs: Any) -> EvaluateResult:  # noqa: ARG001 - the form that every reward has
    """1.0 if the first value that ``end_goal_sql`` gives is true (not 0, not empty, not NULL), else 0.0."""
    from reward_kit.models import EvaluateResult, MetricResult

    reached = bool(db.execute(end_goal_sql).scalar())
    score, reason = (1.0, "The end goal is reached") if reached else (0.0, "The end goal is not reached")
    return EvaluateResult(
        score=score, reason=reason, metrics={"end_goal": MetricResult(score=score, reason=reason)}
    )
