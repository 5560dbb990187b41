"""tau-bench and tau2-bench: tasks as bundles, results files, and the names that both use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Side

PARTS = {
    "DB": "data",
    "ENV_ASSERTION": "checks",
    "ACTION": "calls",
    "COMMUNICATE": "outputs",
    "NL_ASSERTION": "criteria",
}
"""The parts of a grade by tau2-bench's names, each with the metric of a ported bundle's reward."""
SIDES: dict[str, Side] = {"assistant": "agent", "user": "user"}
"""The sides by tau2-bench's names."""
MAX_ERRORS = 10
"""Failed calls of both sides after which tau2-bench ends a conversation."""
