"""Reward functions in the form TRL trainers call: batches of prompts and completions to scores.

A sample whose reward fails is logged and scores 0.0, so that one bad sample does not end a training run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from reward_kit.models import EvaluateResult, Message

__all__ = ["conversation_adapter", "create_trl_adapter"]

logger = logging.getLogger(__name__)

TrlReward = Callable[..., "list[float]"]


def create_trl_adapter(
    reward_fn: Callable[..., Any],
    dataset_to_reward_kwargs_map: Mapping[str, str],
    static_reward_kwargs: Mapping[str, Any] | None = None,
    user_message_fn: Callable[[Any], str] | None = None,
    assistant_message_fn: Callable[[Any], str] | None = None,
) -> TrlReward:
    """Make ``adapter(prompts, completions=None, **columns)``, which scores each pair as a dialogue.

    ``dataset_to_reward_kwargs_map`` says which dataset column becomes which argument of the reward
    (``None`` if the batch has no such column), ``static_reward_kwargs`` are the same for all samples.
    The two functions turn a prompt and a completion into text; without them ``str`` and the completion's
    content are taken.
    """
    prompt_text = user_message_fn or str
    reply_text = assistant_message_fn or completion_text

    def adapter(prompts: list[Any], completions: list[Any] | None = None, **columns: Any) -> list[float]:
        replies = [""] * len(prompts) if completions is None else completions
        count = _common_length(prompts, replies)
        mapped = {
            argument: _column(columns, column, count)
            for column, argument in dataset_to_reward_kwargs_map.items()
        }

        def score(i: int) -> float:
            messages = [
                Message(role="user", content=prompt_text(prompts[i])),
                Message(role="assistant", content=reply_text(replies[i])),
            ]
            own = {argument: values[i] for argument, values in mapped.items()}
            result = reward_fn(messages=messages, **{**(static_reward_kwargs or {}), **own})
            return float(result["score"])

        return [_score_or_zero(score, i) for i in range(count)]

    return adapter


def conversation_adapter(reward: Callable[..., EvaluateResult]) -> TrlReward:
    """Make ``adapter(prompts, completions=None, **columns)`` for prompts that are messages or text.

    A completion is the assistant's text or ``[{"role": "assistant", "content": ...}]``; without completions
    the prompts are whole conversations. The column ``solution`` is the ground truth.
    """

    def adapter(prompts: list[Any], completions: list[Any] | None = None, **columns: Any) -> list[float]:
        count = len(prompts) if completions is None else _common_length(prompts, completions)
        solutions = _column(columns, "solution", count) if "solution" in columns else [None] * count

        def score(i: int) -> float:
            prompt = prompts[i]
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
            if completions is not None:
                messages.append({"role": "assistant", "content": completion_text(completions[i])})
            return reward(messages=messages, ground_truth=_solution_text(solutions[i])).score

        return [_score_or_zero(score, i) for i in range(count)]

    return adapter


def completion_text(completion: Any) -> str:
    """Text of one completion, given as a string or as a message (in a list)."""
    if isinstance(completion, list):
        completion = completion[0] if completion else ""
    if isinstance(completion, dict) and "content" in completion:
        completion = completion["content"] or ""
    return str(completion)


def _score_or_zero(score: Callable[[int], float], index: int) -> float:
    try:
        return score(index)
    except Exception:  # border to the reward's code, see the module's docstring
        logger.exception("The reward of sample %d failed; it scores 0.0", index)
        return 0.0


def _common_length(prompts: list[Any], completions: list[Any]) -> int:
    count = min(len(prompts), len(completions))
    if len(prompts) != len(completions):
        logger.warning("%d prompts but %d completions: using %d", len(prompts), len(completions), count)
    return count


def _column(columns: Mapping[str, Any], name: str, count: int) -> list[Any]:
    values = columns.get(name)
    if isinstance(values, list) and len(values) >= count:
        return values
    logger.warning("The batch has no column %r of %d values: None is passed for it", name, count)
    return [None] * count


def _solution_text(solution: Any) -> str | None:
    if isinstance(solution, list):
        solution = solution[0] if solution else None
    return None if solution is None else str(solution)
