"""Reward functions in the form TRL trainers call: batches of prompts and completions to scores.

A sample whose reward fails is logged and scores 0.0, so that one bad sample does not end a training run.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from reward_kit.models import EvaluateResult, Message
from reward_kit.reward_function import awaited

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

    ``dataset_to_reward_kwargs_map`` says which dataset column becomes which argument of the reward (``None``
    if the batch has no such column), ``static_reward_kwargs`` are the same for all samples. The two functions
    turn a prompt and a completion into text; without them ``str`` and the completion's content are taken.
    """
    prompt_text = user_message_fn or str
    reply_text = assistant_message_fn or completion_text

    def score(prompt: Any, reply: Any, sample: dict[str, Any]) -> float:
        messages = [
            Message(role="user", content=prompt_text(prompt)),
            Message(role="assistant", content=reply_text("" if reply is None else reply)),
        ]
        own = {argument: sample[column] for column, argument in dataset_to_reward_kwargs_map.items()}
        found = awaited(reward_fn(messages=messages, **{**(static_reward_kwargs or {}), **own}))
        return float(found["score"])

    return _adapter(score, list(dataset_to_reward_kwargs_map))


def conversation_adapter(reward: Callable[..., EvaluateResult]) -> TrlReward:
    """Make ``adapter(prompts, completions=None, **columns)`` for prompts that are messages or text.

    A completion is the assistant's text or ``[{"role": "assistant", "content": ...}]``; without completions
    the prompts are whole conversations. The column ``solution`` is the ground truth.
    """

    def score(prompt: Any, reply: Any, sample: dict[str, Any]) -> float:
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if reply is not None:
            messages.append({"role": "assistant", "content": completion_text(reply)})
        solution = sample["solution"]
        if isinstance(solution, list):
            solution = solution[0] if solution else None
        truth = None if solution is None else str(solution)
        return float(awaited(reward(messages=messages, ground_truth=truth)).score)

    return _adapter(score, ["solution"], optional=True)


def _adapter(
    score: Callable[[Any, Any, dict[str, Any]], float], names: list[str], *, optional: bool = False
) -> TrlReward:
    """Make the adapter that scores each prompt with its completion and its values of the columns."""

    def adapter(prompts: list[Any], completions: list[Any] | None = None, **columns: Any) -> list[float]:
        replies = [None] * len(prompts) if completions is None else completions
        if len(prompts) != len(replies):
            logger.warning("%d prompts but %d completions: using the fewer", len(prompts), len(replies))
        count = min(len(prompts), len(replies))
        for name in names:
            values = columns.get(name)
            if not isinstance(values, list) or len(values) < count:
                if not optional or values is not None:
                    logger.warning("The batch has no column %r of %d values: it is None", name, count)
                columns[name] = [None] * count
        scores = []
        for i in range(count):
            try:
                scores.append(score(prompts[i], replies[i], {name: columns[name][i] for name in names}))
            except Exception:  # border to the reward's code, see the module's docstring
                logger.exception("The reward of sample %d failed; it scores 0.0", i)
                scores.append(0.0)
        return scores

    return adapter


def completion_text(completion: Any) -> str:
    """Text of one completion, given as a string or as a message (in a list)."""
    if isinstance(completion, list):
        completion = completion[0] if completion else ""
    if isinstance(completion, dict) and "content" in completion:
        completion = completion["content"] or ""
    return str(completion)
