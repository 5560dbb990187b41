"""Limits of a rollout: steps, time, and the money and tokens that rollouts may use."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from reward_kit.agent.base.types import Model, Role, Usage
    from reward_kit.agent.models.calls import Caller

BROKEN = 3
"""Times that a model which has answered nothing raises the same until it counts as broken."""


def spent_of(spent: float, most: float) -> str:
    """``5.02 of 5.00 USD are spent``; of less than ten cents two digits."""
    decimals = 2 if most >= 0.1 or not most else min(12, 1 - math.floor(math.log10(most)))
    return f"{spent:.{decimals}f} of {most:.{decimals}f} USD are spent"


@dataclass(slots=True)
class Budget:
    """US dollars and tokens that many rollouts share; ``spent`` and ``tokens`` grow as models answer.

    ``tell_unpriced`` is called once with each model that answers at an unknown price: ``spent`` lacks it.
    ``tell`` is called with what each call adds to both.
    """

    max_cost: float = math.inf
    spent: float = 0.0
    max_tokens: float = math.inf
    tokens: int = 0
    tell_unpriced: Callable[[str], None] | None = None
    tell: Callable[[float, int], None] | None = None
    _unpriced: set[str] = field(default_factory=set)

    def count(self, usage: Usage) -> None:
        """Count calls; answers from the cache cost nothing."""
        self.add(usage.paid, usage.fresh_tokens)
        if self.tell is not None:
            self.tell(usage.paid, usage.fresh_tokens)

    def add(self, spent: float, tokens: int) -> None:
        """Count what another process has used."""
        self.spent += spent
        self.tokens += tokens

    def unpriced(self, model: str, asked: Model | None = None) -> None:
        """Report a model whose price is not known; ``asked`` may name its provider, too."""
        name = asked.name if asked is not None and asked.name.endswith(f"/{model}") else model
        if self.tell_unpriced is not None and name not in self._unpriced:
            self._unpriced.add(name)
            self.tell_unpriced(name)

    @property
    def exhausted(self) -> bool:
        """True if no rollout may go on."""
        return self.spent >= self.max_cost or self.tokens >= self.max_tokens

    @property
    def state(self) -> str:
        """The used share of it: ``5.02 of 5.00 USD are spent``."""
        if self.tokens >= self.max_tokens:
            return f"{self.tokens} of {self.max_tokens:.0f} tokens are used"
        return spent_of(self.spent, self.max_cost)


class FirstAnswers:
    """Finds a person's own models that raise the same at every call: they would in all other rollouts."""

    def __init__(self) -> None:
        self._answered: set[str] = set()
        self._broken: Counter[tuple[str, str]] = Counter()

    def answered(self, role: str) -> None:
        """Note that the model of this role has answered: it is not broken."""
        self._answered.add(role)

    def broke(self, role: str, fault: str) -> bool:
        """Note that it has raised ``fault``; True if it has answered nothing and raised this each time."""
        if role in self._answered:
            return False
        self._broken[role, fault] += 1
        return self._broken[role, fault] >= BROKEN


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


@dataclass(slots=True)
class RolloutLimits:
    """Limits of a rollout.

    ``max_steps`` overrides the row's; ``own_budget`` is that of each rollout, ``budget`` is shared by all.
    ``timeout`` is in seconds for agent and user, ``reward_timeout`` for one call of the reward;
    ``reward_retries`` are further calls of a reward whose own calls a busy server refused.
    ``parallel_tool_calls=False`` asks models for one tool call at a time (a registry may do so as well).
    ``first_answers`` is shared by the rollouts of an evaluation. ``call_timeouts`` (seconds) are
    for models that have none of their own. ``usage``, if given, becomes the rollout's own, so that it can be
    read also when the rollout is aborted. The time limit of the rollout becomes the clock of ``caller``.
    """

    max_steps: int | None = None
    own_budget: OwnBudget | None = None
    timeout: float | None = None
    reward_timeout: float | None = 300.0
    reward_retries: int = 0
    budget: Budget | None = None
    parallel_tool_calls: bool = True
    first_answers: FirstAnswers | None = None
    call_timeouts: Mapping[Role, float] = field(default_factory=dict)
    usage: dict[Role, Usage] | None = None
    on_tool: Callable[[str], None] | None = None
    caller: Caller | None = None
