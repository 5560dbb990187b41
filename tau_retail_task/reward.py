"""The reward: the data equal those after the gold actions, and the customer was told every output."""

from collections.abc import Sequence
from typing import Any

from reward_kit import EvaluateResult, reward_function
from reward_kit.agent import ReadOnlyDatabase
from reward_kit.agent.rewards import all_of, database_equal, outputs_said

NOT_COMPARED = ("users.address_replaced", "orders.address_replaced")
"""Columns that only decide the order of keys in an answer."""
EXACT = True
"""Numbers are compared with their type, as in the benchmark: 60 is not 60.0."""
ANYWHERE = True
"""Outputs are found inside words and numbers too, as in the benchmark."""


@reward_function
def evaluate(
    messages: Sequence[dict[str, Any]],
    *,
    db: ReadOnlyDatabase,
    outputs: Sequence[str] | None = None,
    gold_db: ReadOnlyDatabase | None = None,
    rollout: Any = None,
    **kwargs: Any,
) -> EvaluateResult:
    """Return 1.0 if the final data equal those after the gold actions and every output was said, else 0.0.

    Without ``gold_db``, the data must be unchanged. A rollout that was cut off, by ``max_steps`` for example,
    gets 0.0.
    """
    checks = {
        "database": database_equal(db, gold_db, ignore=NOT_COMPARED, exact=EXACT),
        "outputs": outputs_said(outputs, messages, anywhere=ANYWHERE),
    }
    return all_of(checks, rollout=rollout, passed="The data are as expected and everything was said")
