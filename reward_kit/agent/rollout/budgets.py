"""Limits of a rollout: steps, time, and the money and tokens that rollouts may use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.deadline import TimeLimit
from reward_kit.agent.models.function import FirstAnswers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reward_kit.agent.base.types import Role, Usage
    from reward_kit.agent.models.calls import Caller
    from reward_kit.agent.rollout.trace import Trace


PLAYERS = "its agent or user"


def spent_of(spent: float, most: float) -> str:
    """``5.02 of 5.00 USD are spent``; of less than ten cents two digits."""
    decimals = 2 if most >= 0.1 or not most else min(12, 1 - math.floor(math.log10(most)))
    return f"{spent:.{decimals}f} of {most:.{decimals}f} USD are spent"


@dataclass(frozen=True, slots=True)
class Budget:
    """US dollars and tokens that may be used: the options ``<option>-cost`` and ``<option>-tokens``."""

    max_cost: float | None = None
    max_tokens: int | None = None
    option: str = "--max"

    def used_up(self, cost: float, tokens: int) -> str | None:
        """The limit that is reached and its option: ``5200 of 5000 tokens are used (--max-tokens)``."""
        if self.max_cost is not None and cost >= self.max_cost:
            return f"{spent_of(cost, self.max_cost)} ({self.option}-cost)"
        if self.max_tokens is not None and tokens >= self.max_tokens:
            return f"{tokens} of {self.max_tokens} tokens are used ({self.option}-tokens)"
        return None


@dataclass(slots=True)
class RolloutLimits:
    """Limits of a rollout.

    ``max_steps`` overrides the row's. Answers from the cache count towards the ``budget`` like those that
    were paid for: a rollout comes out the same.
    ``timeout`` is in seconds for agent and user, ``reward_timeout`` for one call of the reward;
    ``reward_retries`` are further calls of a reward whose own calls a busy server refused.
    ``parallel_tool_calls=False`` asks models for one tool call per answer and runs the first only.
    ``guard_user`` sends back lines that end too early. ``first_answers`` is shared by the rollouts of an
    evaluation. ``call_timeouts`` (seconds) are for models that have none of their own. ``on_usage`` is called
    with role, usage and model of each model call, ``on_begin`` with what acts from now on: a tool, the
    ``PLAYERS``, the reward. The time limit of the rollout becomes the clock of ``caller``.
    """

    max_steps: int | None = None
    budget: Budget | None = None
    timeout: float | None = None
    reward_timeout: float | None = 300.0
    reward_retries: int = 0
    parallel_tool_calls: bool = True
    guard_user: bool = False
    first_answers: FirstAnswers = field(default_factory=FirstAnswers)
    call_timeouts: Mapping[Role, float] = field(default_factory=dict)
    on_usage: Callable[[Role, Usage, str], None] | None = None
    on_begin: Callable[[str], None] | None = None
    caller: Caller | None = None


class Watch(TimeLimit):
    """Notes a fault of ``name`` in the trace if it blocks the event loop; no limit."""

    def __init__(self, trace: Trace, name: str) -> None:
        super().__init__(math.inf)
        self._trace, self._name = trace, name

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self.late:
            fault = self.blocked("await what takes long, or call it with asyncio.to_thread")
            if fault is not None:
                self._trace.note_tool_fault(self._name, fault)
