"""OpenEvals evaluators as reward functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.models import EvaluateResult, MetricResult
from reward_kit.typed_interface import reward_function

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["adapt"]


def adapt(openeval_fn: Callable[..., Any]) -> Callable[..., EvaluateResult]:
    """Wrap an OpenEvals evaluator as a reward function of the last message's content.

    The ground truth (a value, or messages whose last content counts) is the evaluator's
    ``reference_outputs``; further arguments go to it as they are. Of several results the first one counts.
    """

    @reward_function
    def adapted(messages: list[Any], ground_truth: Any = None, **kwargs: Any) -> EvaluateResult:
        if not messages:
            return EvaluateResult(score=0.0, reason="No messages")
        reference = ground_truth
        if isinstance(ground_truth, list):
            reference = ground_truth[-1].get("content") if ground_truth else None
        answer = openeval_fn(outputs=messages[-1].get("content", ""), reference_outputs=reference, **kwargs)
        found: dict[str, Any] = answer[0] if isinstance(answer, list) else answer
        score, reason = float(found.get("score") or 0.0), found.get("comment")
        metric = MetricResult(score=score, reason=reason or "")
        return EvaluateResult(score=score, reason=reason, metrics={found.get("key") or "openeval": metric})

    return adapted
