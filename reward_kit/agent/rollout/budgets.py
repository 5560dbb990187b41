"""Limits of a rollout: steps, time, and the money and tokens that rollouts may use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reward_kit.agent.models.function import FirstAnswers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from reward_kit.agent.base.types import Role, Usage
    from reward_kit.agent.models.calls import Caller


PLAYERS = "its agent or user"


def spent_of(spent: float, most: float) -> str:
    """``5.02 of 5.00 USD are spent``; of less than ten cents two digits."""
    decimals = 2 if most >= 0.1 or not most else min(12, 1 - math.floor(math.log10(most)))
    return f"{spent:.{decimals}f} of {most:.{decimals}f} USD are spent"


@dataclass(slots=True)
class Budget:
    """US dollars and tokens that many rollouts share; ``spent`` and ``tokens`` grow as models answer."""

    max_cost: float = math.inf
    spent: float = 0.0
    max_tokens: float = math.inf
    tokens: int = 0

    def count(self, usage: Usage) -> None:
        """Count calls; answers from the cache cost nothing."""
        self.spent += usage.paid
        self.tokens += usage.fresh_tokens

    @property
    def exhausted(self) -> bool:
        """True if no rollout may take another step."""
        return self.spent >= self.max_cost or self.tokens >= self.max_tokens

    @property
    def state(self) -> str:
        """The used share of it: ``5.02 of 5.00 USD are spent``."""
        if self.tokens >= self.max_tokens:
            return f"{self.tokens} of {self.max_tokens:.0f} tokens are used"
        return spent_of(self.spent, self.max_cost)


@dataclass(frozen=True, slots=True)
class OwnBudget:
    """Tokens and US dollars that the agent and the user of one rollout may use.

    Answers from the cache count as those that were paid for: a rollout comes out the same.
    """

    max_tokens: float = math.inf
    max_cost: float = math.inf

    def used_up(self, usages: Iterable[Usage]) -> str | None:
        """A sentence on the limit that is reached, if any: ``5200 of 5000 tokens are used``."""
        tokens, cost = 0, 0.0
        for usage in usages:
            tokens += usage.input_tokens + usage.output_tokens
            cost += usage.cost
        if tokens >= self.max_tokens:
            return f"{tokens} of {self.max_tokens:.0f} tokens are used (--max-rollout-tokens)"
        if cost >= self.max_cost:
            return f"{spent_of(cost, self.max_cost)} (--max-rollout-cost)"
        return None


def own_budget(max_tokens: float | None, max_cost: float | None) -> OwnBudget | None:
    """The budget with these limits; None without any."""
    if max_tokens is None and max_cost is None:
        return None
    return OwnBudget(*(math.inf if most is None else most for most in (max_tokens, max_cost)))


@dataclass(slots=True)
class RolloutLimits:
    """Limits of a rollout.

    ``max_steps`` overrides the row's; ``own_budget`` is that of each rollout, ``budget`` is shared by all.
    ``timeout`` is in seconds for agent and user, ``reward_timeout`` for one call of the reward;
    ``reward_retries`` are further calls of a reward whose own calls a busy server refused.
    ``parallel_tool_calls=False`` asks models for one tool call per answer and runs the first only.
    ``guard_user`` sends back lines that end too early. ``first_answers`` is shared by the rollouts of an
    evaluation. ``call_timeouts`` (seconds) are for models that have none of their own. ``on_usage`` is called
    with role, usage and model of each model call, ``on_begin`` with what acts from now on: a tool, the
    ``PLAYERS``, the reward. The time limit of the rollout becomes the clock of ``caller``.
    """

    max_steps: int | None = None
    own_budget: OwnBudget | None = None
    timeout: float | None = None
    reward_timeout: float | None = 300.0
    reward_retries: int = 0
    budget: Budget | None = None
    parallel_tool_calls: bool = True
    guard_user: bool = False
    first_answers: FirstAnswers = field(default_factory=FirstAnswers)
    call_timeouts: Mapping[Role, float] = field(default_factory=dict)
    on_usage: Callable[[Role, Usage, str], None] | None = None
    on_begin: Callable[[str], None] | None = None
    caller: Caller | None = None
