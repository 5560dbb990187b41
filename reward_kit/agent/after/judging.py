"""A reward called on the messages and databases of a stored rollout."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.strict_json import copied
from reward_kit.agent.bundles.rules import violations_of
from reward_kit.agent.rewards.checks import checking
from reward_kit.agent.rollout.judge import call_reward, judged_with_retries, takes_async_faces
from reward_kit.agent.store.loading import load_rollout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reward_kit.agent.base.types import ModelCall
    from reward_kit.agent.bundles.rules import Rule
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database.database import Mode
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.models import EvaluateResult, RewardOutput

REWARD_TIMEOUT = 300.0
DAMAGED = (KeyError, TypeError, AttributeError, ValueError)
"""Exceptions of reading a trajectory whose fields are not of their types."""


async def judge_record(
    record: Trace,
    reward: Callable[..., Any],
    *,
    rules: Sequence[Rule] = (),
    mode: Mode = "overlay",
    task: Task | None = None,
    timeout: float | None = REWARD_TIMEOUT,
    retries: int = 0,
    calls: list[ModelCall] | None = None,
) -> EvaluateResult | RewardOutput:
    """The result of ``reward`` on a stored rollout.

    The ``rules`` set the violations of ``record``. Each try gets a record of its own, with the fields of
    ``record``. ``task`` has the functions of its checks and its hidden tables. Model calls that the reward
    counts are added to ``calls``. Raises ``RewardError`` as ``judge``
    does, ``StorageError`` and ``DatabaseError`` if the stored databases cannot be read.
    """
    assert record.path is not None, "it was read"
    path = record.path
    record.violations = await asyncio.to_thread(
        violations_of, rules, record.fields, record.messages, record.tool_calls, record.user_messages
    )

    async def judge_once() -> EvaluateResult | RewardOutput:
        with load_rollout(path) as given:
            given.fields = copied(record.fields)
            given.violations = copied(record.violations)
            before = len(given.model_calls)
            hidden = () if task is None else task.hidden
            is_async = takes_async_faces(reward)
            arguments = given.reward_arguments(is_async=is_async, mode=mode, hidden=hidden)
            try:
                with checking(task):
                    return await call_reward(reward, arguments, timeout=timeout)
            finally:
                if calls is not None:
                    calls.extend(given.model_calls[before:])

    return await judged_with_retries(judge_once, retries)
