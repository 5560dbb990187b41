"""Where a rollout ends though nobody in it has ended it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from reward_kit.agent.calls import Role
    from reward_kit.agent.completion import Model, Usage
    from reward_kit.agent.own_models import CallTimeout

CANCELLATION_GRACE = 5.0
"""Seconds that an episode or a tool past its time has to clean up; then it is left behind."""


def spent_of(spent: float, most: float) -> str:
    """``5.02 of 5.00 USD are spent``; of less than ten cents two digits."""
    decimals = 2 if most >= 0.1 or not most else min(12, 1 - math.floor(math.log10(most)))
    return f"{spent:.{decimals}f} of {most:.{decimals}f} USD are spent"


@dataclass(slots=True)
class Budget:
    """US dollars and tokens that many rollouts share; ``spent`` and ``tokens`` grow as models answer.

    ``tell_unpriced`` is given each model once that answers at a price which is not known: ``spent`` lacks it.
    ``tell`` is given what each call adds to both.
    """

    max_cost: float = math.inf
    spent: float = 0.0
    max_tokens: float = math.inf
    tokens: int = 0
    tell_unpriced: Callable[[str], None] | None = None
    tell: Callable[[float, int], None] | None = None
    _unpriced: set[str] = field(default_factory=set)

    def count(self, usage: Usage) -> None:
        """Count calls; what came from the cache costs nothing."""
        self.add(usage.paid, usage.fresh_tokens)
        if self.tell is not None:
            self.tell(usage.paid, usage.fresh_tokens)

    def add(self, spent: float, tokens: int) -> None:
        """Count what another process has."""
        self.spent += spent
        self.tokens += tokens

    def unpriced(self, model: str, asked: Model | None = None) -> None:
        """A call of ``model`` was counted whose price is not known; ``asked`` may name its provider, too."""
        name = asked.name if asked is not None and asked.name.endswith(f"/{model}") else model
        if self.tell_unpriced is not None and name not in self._unpriced:
            self._unpriced.add(name)
            self.tell_unpriced(name)

    @property
    def exhausted(self) -> bool:
        return self.spent >= self.max_cost or self.tokens >= self.max_tokens

    @property
    def state(self) -> str:
        """What of it is gone: ``5.02 of 5.00 USD are spent``."""
        if self.tokens >= self.max_tokens:
            return f"{self.tokens} of {self.max_tokens:.0f} tokens are used"
        return spent_of(self.spent, self.max_cost)


BROKEN = 3
"""So often a model has to raise the same, having answered nothing."""


class FirstAnswers:
    """Notices models of a person's own that break each time they are asked: they would in all other rollouts.

    One that has answered is never thought to.
    """

    def __init__(self) -> None:
        self._answered: set[str] = set()
        self._broken: Counter[tuple[str, str]] = Counter()

    def answered(self, role: str) -> None:
        """The model of this role has answered."""
        self._answered.add(role)

    def broke(self, role: str, fault: str) -> bool:
        """The model of this role has raised ``fault``; whether it does so every time."""
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
        """What of it is gone, where all of it is: ``5200 of 5000 tokens are used``."""
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
    """Where a rollout ends though nobody has ended it.

    ``max_steps`` overrides the row's; ``own_budget`` is that of each rollout, ``budget`` is shared by all.
    ``timeout`` is in seconds for the whole episode, ``reward_timeout`` for judging it once;
    ``reward_retries`` is how often a reward is called again whose own calls a busy server refused.
    ``parallel_tool_calls=False`` asks models for one tool call at a time (a registry may do so as well).
    ``first_answers`` is shared by the rollouts of an evaluation. ``call_timeouts`` are for models that do not
    see to it themselves. ``usage``, if given, becomes the rollout's own, for whoever wants to know what it
    has used also when it is broken off.
    """

    max_steps: int | None = None
    own_budget: OwnBudget | None = None
    timeout: float | None = None
    reward_timeout: float | None = 300.0
    reward_retries: int = 0
    budget: Budget | None = None
    parallel_tool_calls: bool = True
    first_answers: FirstAnswers | None = None
    call_timeouts: Mapping[Role, CallTimeout] = field(default_factory=dict)
    usage: dict[Role, Usage] | None = None
