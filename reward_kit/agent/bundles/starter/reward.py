"""The reward: 1 if all that a row says holds, and the conversation came to its end."""

from typing import Any

from reward_kit import EvaluateResult, reward_function
from reward_kit.agent.rewards import all_of, calls_made, database_equal_up_to_ids, outputs_said


@reward_function
def evaluate(
    messages: list[Any],
    *,
    db: Any,
    gold_db: Any = None,  # the data after the row's `actions`
    rollout: Any = None,
    outputs: Any = (),
    required_calls: Any = (),
    forbidden_calls: Any = (),
    not_compared: Any = (),
    **kwargs: Any,  # all other fields of the row: take those that you check, too
) -> EvaluateResult:
    calls = rollout.tool_calls if rollout else ()
    checks = {
        "database": database_equal_up_to_ids(db, gold_db, rollout, ignore=not_compared),
        "outputs": outputs_said(outputs, messages),
        "calls": calls_made(calls, required=required_calls, forbidden=forbidden_calls),
    }
    return all_of(checks, rollout=rollout)
