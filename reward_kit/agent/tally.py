"""The running numbers of an evaluation, kept up as rollouts end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from reward_kit.agent.completion import Usage
from reward_kit.agent.limits import Budget, spent_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.outcome import RolloutOutcome


@dataclass(slots=True)
class Tally:
    """How far an evaluation is.

    ``planned`` counts all rollouts, ``earlier`` those that were done before this run. ``spending`` grows as
    models answer, also for rollouts that are not over yet (of models that other processes ask, if there is a
    budget); it has no limit of its own, since reaching ``max_cost`` (US dollars) or ``max_tokens`` ends no
    rollout that has begun. ``usage`` counts the rollouts that are over. ``interactive`` says that a person at
    the terminal takes part.
    """

    eval_id: str
    planned: int
    spending: Budget = field(default_factory=Budget)
    max_cost: float | None = None
    max_tokens: int | None = None
    errors_as_failures: bool = False
    interactive: bool = False
    earlier: int = 0
    done: int = 0
    successes: int = 0
    unjudged: int = 0
    usage: Usage = field(default_factory=Usage)
    started: float = field(default_factory=time.monotonic)
    _rows: dict[str, tuple[int, int]] = field(default_factory=dict)
    _passes: float = 0.0

    def add(self, outcome: RolloutOutcome) -> None:
        """Count a rollout that is over; attempts that will be repeated count only for what they used."""
        for usage in outcome.usage.values():
            self.usage.add(usage)
        if not outcome.final:
            return
        self.done += 1
        self.successes += outcome.success
        if not outcome.judged:
            self.unjudged += 1
            if not self.errors_as_failures:
                return
        n, c = self._rows.get(outcome.row_id, (0, 0))
        self._passes -= c / n if n else 0.0
        n, c = n + 1, c + outcome.success
        self._passes += c / n
        self._rows[outcome.row_id] = n, c

    @property
    def pass_1(self) -> float | None:
        """Pass^1 so far: the mean over rows that have a judged rollout; None before the first."""
        return min(1.0, max(0.0, self._passes / len(self._rows))) if self._rows else None

    @property
    def has_budget(self) -> bool:
        """Whether rollouts may come to be no longer begun."""
        return self.max_cost is not None or self.max_tokens is not None

    @property
    def may_start(self) -> bool:
        """Whether there is money and tokens left to begin another rollout."""
        return self.used_up is None

    @property
    def used_up(self) -> str | None:
        """Which budget leaves nothing to begin another rollout with, and the option that set it."""
        if self.max_cost is not None and self.spending.spent >= self.max_cost:
            return f"{spent_of(self.spending.spent, self.max_cost)} (--max-cost)"
        if self.max_tokens is not None and self.spending.tokens >= self.max_tokens:
            return f"{self.spending.tokens} of {self.max_tokens} tokens are used (--max-tokens)"
        return None

    @property
    def seconds(self) -> float:
        """Seconds since this run began."""
        return time.monotonic() - self.started

    @property
    def per_second(self) -> float | None:
        """Rollouts that end per second in this run; None before the first."""
        ended = self.done - self.earlier
        return ended / self.seconds if ended and self.seconds else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the end if it goes on like this."""
        rate = self.per_second
        return (self.planned - self.done) / rate if rate else None


class Progress(Protocol):
    """Something that shows how far an evaluation is.

    It may also have ``noted(text)``: something happened that people should know, such as that a provider does
    not answer.
    """

    def started(self, tally: Tally) -> None:
        """The first rollout is about to start."""

    def ended(self, outcome: RolloutOutcome, tally: Tally) -> None:
        """A rollout (or an attempt that is going to be repeated) is over and saved."""

    def closed(self, tally: Tally) -> None:
        """No more rollouts will end."""


def teller(progress: Progress) -> Callable[[str], None] | None:
    """The way in which ``progress`` tells people something; None where it has none."""
    return getattr(progress, "noted", None)


def note(progress: Progress, text: str) -> None:
    """Tell people something, where ``progress`` has a way to."""
    tell = teller(progress)
    if tell is not None:
        tell(text)


class NoProgress:
    """Shows nothing."""

    def started(self, tally: Tally) -> None: ...

    def ended(self, outcome: RolloutOutcome, tally: Tally) -> None: ...

    def closed(self, tally: Tally) -> None: ...
