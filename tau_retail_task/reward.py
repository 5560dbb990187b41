"""The reward: the data are what the gold actions make of them, and the customer was told all there was to
tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit import EvaluateResult, reward_function
from reward_kit.agent.rewards import all_of, database_equal, outputs_said

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.database import ReadOnlyDatabase

NOT_COMPARED = ("users.address_replaced", "orders.address_replaced")
"""Columns that only decide how tools show a row."""
EXACT = True
"""Of numbers: 60 is not 60.0, as in tau-bench."""


@reward_function
def evaluate(
    messages: Sequence[Mapping[str, Any]],
    *,
    db: ReadOnlyDatabase,
    outputs: Sequence[str] | None = None,
    gold_db: ReadOnlyDatabase | None = None,
    rollout: Any = None,
    **kwargs: Any,  # noqa: ARG001 - the other fields of the row
) -> EvaluateResult:
    """1.0 if the final data equal those after the gold actions and every output was said, else 0.0.

    Without ``gold_db`` nothing was to be changed. Of ``rollout`` only ``stop_reason`` is asked: where it
    was cut off, by ``max_steps`` for example, the score is 0.0 whatever the data are.
    """
    checks = {
        "database": database_equal(db, gold_db, ignore=NOT_COMPARED, exact=EXACT),
        "outputs": outputs_said(outputs, messages),
    }
    return all_of(checks, rollout=rollout, passed="The data are as expected and everything was said")
