"""Progress of an evaluation: its running numbers, and objects that show them."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from reward_kit.agent.base.types import Usage
from reward_kit.agent.rollout.budgets import Budget

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reward_kit.agent.rollout.outcome import Outcome


logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Tally:
    """Running numbers of an evaluation.

    ``planned`` counts all rollouts, ``earlier`` those that were done before this run. ``usage`` grows as
    models answer, also in rollouts that still run; once it reaches the ``budget`` no more rollouts start.
    ``interactive`` is set if a person at the terminal takes part.
    """

    eval_id: str
    planned: int
    budget: Budget = field(default_factory=Budget)
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

    def add(self, outcome: Outcome) -> None:
        """Count a finished rollout; an attempt that will be repeated is none."""
        if not outcome.final:
            return
        self.done += 1
        self.successes += outcome.success
        if not outcome.scored:
            self.unjudged += 1
            if not self.errors_as_failures:
                return
        self._count(outcome.row_id, outcome.success)

    def add_earlier(self, places: Mapping[tuple[str, int], bool]) -> None:
        """Count the judged rollouts of earlier runs: True if it passed."""
        for (row_id, _), passed in places.items():
            self._count(row_id, passed)
        self.earlier = self.done = len(places)
        self.successes = sum(places.values())

    def _count(self, row_id: str, passed: bool) -> None:
        n, c = self._rows.get(row_id, (0, 0))
        self._passes += (c + passed) / (n + 1) - (c / n if n else 0.0)
        self._rows[row_id] = n + 1, c + passed

    @property
    def pass_1(self) -> float | None:
        """Pass^1 so far: the mean over rows that have a judged rollout; None before the first."""
        return min(1.0, max(0.0, self._passes / len(self._rows))) if self._rows else None

    @property
    def may_start(self) -> bool:
        """True while the budgets allow another rollout to start."""
        return self.used_up is None

    @property
    def used_up(self) -> str | None:
        """The exhausted budget and its option, as text; None while none is."""
        return self.budget.used_up(self.usage.paid, self.usage.fresh_tokens)

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
        """Seconds until the end at the present rate; None before the first rollout has ended."""
        rate = self.per_second
        return (self.planned - self.done) / rate if rate else None


class Progress(Protocol):
    """An object that shows the progress of an evaluation.

    It may also have ``noted(text)``, which is called with news such as a provider that does not answer, and
    ``answered(tally)``, which is called when a model has answered.
    """

    def started(self, tally: Tally) -> None:
        """The first rollout is about to start."""

    def ended(self, outcome: Outcome, tally: Tally) -> None:
        """A rollout, or an attempt that will be repeated, is saved."""

    def closed(self, tally: Tally) -> None:
        """No more rollouts will end."""


class NoProgress:
    """Shows nothing."""

    def started(self, tally: Tally) -> None: ...

    def ended(self, outcome: Outcome, tally: Tally) -> None: ...

    def closed(self, tally: Tally) -> None: ...


class Display:
    """The sight of a run for people: warnings before its first rollout, then its progress.

    ``tally`` are the running numbers, once there are any.
    """

    def __init__(
        self, progress: Progress | None = None, warn: Callable[[str], None] = logger.warning
    ) -> None:
        self.tally: Tally | None = None
        self.warn = warn
        self.progress = progress or NoProgress()

    def start(self, tally: Tally) -> None:
        """Show the progress from now on."""
        self.tally = tally
        self.progress.started(tally)

    def answered(self) -> None:
        """Tell the progress that a model has answered, if it wants to know."""
        answered: Callable[[Tally], None] | None = getattr(self.progress, "answered", None)
        if answered is not None and self.tally is not None:
            answered(self.tally)

    def note(self, text: str) -> None:
        """Show a message with the progress; as a warning without one, or before it has started."""
        if self.tally is None or type(self.progress) is NoProgress:
            self.warn(text)
        else:
            self.show(text)

    def show(self, text: str) -> None:
        """Show news with the progress, if that shows texts."""
        noted: Callable[[str], None] | None = getattr(self.progress, "noted", None)
        if noted is not None:
            noted(text)
