"""deepeval metrics as reward functions; deepeval itself is imported when one is called."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from reward_kit.models import EvaluateResult, MetricResult
from reward_kit.typed_interface import reward_function

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["adapt_metric"]

NAMES_OF_BASE_CLASSES = {"Base Metric", "Base Conversational Metric", "Base Multimodal Metric"}


def adapt_metric(metric: Any) -> Callable[..., EvaluateResult]:
    """Wrap ``metric`` as a reward function that measures the last message; the one before is its input.

    The ground truth is the expected output. Other ``evaluation_params`` of the metric (``context``,
    ``tools_called`` ...) come from the call's arguments. Metrics of whole conversations are not supported.
    """

    @reward_function
    def adapted(messages: list[Any], ground_truth: str | None = None, **kwargs: Any) -> EvaluateResult:
        try:
            test_case_class = importlib.import_module("deepeval.test_case").LLMTestCase
        except ImportError as error:
            raise ImportError(
                "deepeval must be installed to use this integration: pip install deepeval"
            ) from error
        if not messages:
            return EvaluateResult(score=0.0, reason="No messages")
        known = {
            **kwargs,
            "input": messages[-2].get("content", "") if len(messages) > 1 else "",
            "actual_output": messages[-1].get("content", ""),
            "expected_output": ground_truth,
        }
        wanted = {parameter.value for parameter in getattr(metric, "evaluation_params", None) or []}
        names = {"input", "actual_output"} | (wanted or {"expected_output"})
        metric.measure(test_case_class(**{name: known.get(name) for name in names}))
        score, reason = float(metric.score or 0.0), getattr(metric, "reason", None)
        result = MetricResult(score=score, reason=reason or "")
        return EvaluateResult(score=score, reason=reason, metrics={_name_of(metric): result})

    return adapted


def _name_of(metric: Any) -> str:
    own = getattr(metric, "__name__", None)
    if own and own not in NAMES_OF_BASE_CLASSES:
        return str(own)
    return str(getattr(metric, "name", None) or type(metric).__name__)
