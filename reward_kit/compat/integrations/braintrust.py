"""Braintrust scorers as reward functions, and reward functions as Braintrust scorers.

A scorer is a function of ``(input, output, expected)`` that gives a number, or an object with a ``score``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reward_kit.models import EvaluateResult, Message
from reward_kit.reward_function import awaited
from reward_kit.typed_interface import reward_function

__all__ = ["reward_fn_to_scorer", "scorer_to_reward_fn"]

BraintrustScorer = Callable[[Any, Any, Any], Any]


def scorer_to_reward_fn(
    scorer: BraintrustScorer,
    *,
    messages_to_input: Callable[[list[Message]], Any] | None = None,
    ground_truth_to_expected: Callable[[list[Message]], Any] | None = None,
) -> Callable[..., EvaluateResult]:
    """Wrap ``scorer`` as a reward function.

    The scorer's input is the first message's content, its output the last one's, its expected value the
    content of the ground truth's last message (``None`` without a ground truth); the two functions replace
    the first and the third.
    """

    @reward_function
    def scored(
        messages: list[Message], ground_truth: list[Message] | None = None, **_: Any
    ) -> EvaluateResult:
        given = messages_to_input(messages) if messages_to_input else messages[0].content
        expected = ground_truth[-1].content if ground_truth else None
        if ground_truth and ground_truth_to_expected:
            expected = ground_truth_to_expected(ground_truth)
        score = scorer(given, messages[-1].content, expected)
        return EvaluateResult(score=getattr(score, "score", score))

    return scored


def reward_fn_to_scorer(reward_fn: Callable[..., Any]) -> Callable[[Any, Any, Any], float]:
    """Wrap ``reward_fn`` as a scorer of one user-assistant exchange (input and output).

    ``expected`` becomes the ground truth, as one assistant message.
    """

    def scorer(input: Any, output: Any, expected: Any = None) -> float:  # noqa: A002 - Braintrust passes it by name
        messages = [Message(role="user", content=str(input)), Message(role="assistant", content=str(output))]
        truth = None if expected is None else [Message(role="assistant", content=str(expected))]
        return float(awaited(reward_fn(messages=messages, ground_truth=truth))["score"])

    return scorer
