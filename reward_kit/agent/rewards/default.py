"""The reward of a bundle without ``reward.py``, which judges by what the row says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.rewards.checks import (
    all_of,
    calls_made,
    check_of,
    checks_hold,
    outputs_said,
    product_of,
)
from reward_kit.agent.rewards.criteria import criteria_met
from reward_kit.agent.rewards.made_up_ids import database_equal_up_to_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.database import ReadOnlyDatabase
    from reward_kit.models import EvaluateResult, MetricResult


def evaluate(
    messages: Sequence[Message],
    *,
    db: ReadOnlyDatabase,
    gold_db: ReadOnlyDatabase | None = None,
    rollout: Any = None,
    end_goal_sql: str | None = None,
    actions: Sequence[Any] = (),
    outputs: Sequence[str] = (),
    checks: Sequence[Any] = (),
    required_calls: Sequence[Any] = (),
    forbidden_calls: Sequence[Any] = (),
    criteria: Sequence[str] = (),
    judge_model: str | None = None,
    not_compared: Sequence[str] = (),
    score_by: Sequence[str] | None = None,
    **kwargs: Any,  # noqa: ARG001 - the other fields of the row
) -> EvaluateResult:
    """1.0 if everything holds that the row says, else 0.0.

    With ``end_goal_sql`` the first value of its result is true (not 0, not empty, not NULL); else the data
    equal those after the gold actions up to made-up ids and what ``not_compared`` names, and the outputs were
    said. Further, the ``checks`` hold, the tool calls are as ``required_calls`` and ``forbidden_calls`` say,
    the judge finds the ``criteria`` met, and the conversation was not cut off.

    With ``score_by`` the score is the product of the parts that it names; the others are not looked at.
    ``calls`` are then, without ``required_calls`` and ``forbidden_calls``, the gold actions.
    """
    made, opening = (rollout.tool_calls, rollout.opening) if rollout is not None else ((), 0)
    parts: dict[str, Callable[[], MetricResult]] = {
        "data": lambda: database_equal_up_to_ids(db, gold_db, rollout, ignore=not_compared),
        "outputs": lambda: outputs_said(outputs, messages[opening:]),
        "checks": lambda: checks_hold(checks, db),
        "calls": lambda: calls_made(made, required=required_calls, forbidden=forbidden_calls),
        "criteria": lambda: criteria_met(criteria, messages, model=judge_model, rollout=rollout),
    }
    if score_by is not None:
        required_calls = required_calls or (() if forbidden_calls else actions)
        return product_of({name: parts[name]() for name in score_by}, rollout=rollout)
    found = {}
    passed = "Everything is as required"
    if end_goal_sql is not None:
        reached = bool(db.execute(end_goal_sql).scalar())
        goal = check_of([] if reached else ["The end goal is not reached"], "The end goal is reached")
        found["end_goal"] = goal
        passed = goal.reason
    else:
        if gold_db is not None:
            found["database"] = parts["data"]()
        if outputs:
            found["outputs"] = parts["outputs"]()
    if checks:
        found["checks"] = parts["checks"]()
    if required_calls or forbidden_calls:
        found["calls"] = parts["calls"]()
    if criteria:
        found["criteria"] = parts["criteria"]()
    return all_of(found, rollout=rollout, passed=passed)
