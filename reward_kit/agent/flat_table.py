"""The rollouts of an evaluation as a table: flat dicts, as pandas and CSV files take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.outcome import usage_to_json
from reward_kit.agent.results import asked_model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.results import EvaluationResult

_PLAIN = (
    "stop_reason",
    "stop_detail",
    "error",
    "failure",
    "failure_detail",
    "failure_step",
    "steps",
    "turns",
    "turn_of_success",
    "attempt",
    "seed",
    "started",
    "seconds",
    "model_seconds",
    "waited_seconds",
    "id",
    "file",
)
"""Fields of an outcome that are one value."""


def flat_table(result: EvaluationResult) -> list[dict[str, Any]]:
    """A dict for each rollout that is over, row by row; all have the same keys, None where there is nothing.

    What is nested has dots: ``metrics.NAME``, ``usage.ROLE.input_tokens``. Kinds of faults stand in one text.
    ``cost`` is in US dollars, None where the price of a call is not known.
    """
    outcomes = result.outcomes
    whole = {
        "eval_id": result.eval_id,
        "agent": result.configuration.get("agent"),
        "model": asked_model(result.configuration, result.usage, outcomes),
    }
    nested = [_nested(outcome) for outcome in outcomes]
    names = dict.fromkeys(name for one in nested for name in one)
    return [
        {**whole, **_values(outcome), **{name: inner.get(name) for name in names}}
        for outcome, inner in zip(outcomes, nested, strict=True)
    ]


def _values(outcome: RolloutOutcome) -> dict[str, Any]:
    unpriced = any(usage.unpriced_calls for usage in outcome.usage.values())
    return {
        "row_id": outcome.row_id,
        "rollout": outcome.index,
        "reward": outcome.reward,
        "success": outcome.success if outcome.judged else None,
        **{name: getattr(outcome, name) for name in _PLAIN},
        "user_faults": _listed(outcome.user_faults),
        "tool_faults": _listed(outcome.tool_faults),
        "cost": None if unpriced else outcome.cost,
    }


def _nested(outcome: RolloutOutcome) -> dict[str, Any]:
    nested: dict[str, Any] = {f"metrics.{name}": score for name, score in (outcome.metrics or {}).items()}
    for role, usage in outcome.usage.items():
        nested |= {f"usage.{role}.{name}": number for name, number in usage_to_json(usage).items()}
    return nested


def _listed(names: Iterable[str] | None) -> str | None:
    return None if names is None else ", ".join(names)
