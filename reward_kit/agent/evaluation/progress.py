"""Progress of an evaluation: its running numbers, and objects that show them."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

from reward_kit.agent.base.text import count, tamed
from reward_kit.agent.base.types import Usage
from reward_kit.agent.rollout.rollout import Budget
from reward_kit.agent.scoring.numbers import duration, money, score, tokens

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TextIO

    from rich.console import Console
    from rich.live import Live

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
        """Count a finished rollout, but not an attempt that will be repeated."""
        if outcome.final:
            self.done += 1
            self.successes += outcome.success
            self.unjudged += not outcome.scored
            if outcome.scored or self.errors_as_failures:
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
        """Pass^1 of the rollouts until now: the mean over rows with a judged one; None before the first."""
        return min(1.0, max(0.0, self._passes / len(self._rows))) if self._rows else None

    def may_start(self) -> bool:
        """True while the budgets allow another rollout to start."""
        return self.used_up is None

    @property
    def used_up(self) -> str | None:
        """The exhausted budget and its option, as text; None while none is."""
        return self.budget.used_up(self.usage.paid, self.usage.fresh_tokens)

    @property
    def seconds(self) -> float:
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
    """The sight of a run for people: warnings before its first rollout, then its progress."""

    def __init__(
        self, progress: Progress | None = None, warn: Callable[[str], None] = logger.warning
    ) -> None:
        self.tally: Tally | None = None
        self.warn = warn
        self.progress = progress or NoProgress()
        self._answered: Callable[[Tally], None] | None = getattr(progress, "answered", None)
        self._noted: Callable[[str], None] | None = getattr(progress, "noted", None)
        self.note_once = cache(self.note)

    def start(self, tally: Tally) -> None:
        self.tally = tally
        self.progress.started(tally)

    def answered(self) -> None:
        """Tell the progress that a model has answered, if it wants to know."""
        if self._answered is not None and self.tally is not None:
            self._answered(self.tally)

    def note(self, text: str) -> None:
        """Show a message with the progress; as a warning without one, or before it has started."""
        if self.tally is None or type(self.progress) is NoProgress:
            self.warn(text)
        else:
            self.show(text)

    def show(self, text: str) -> None:
        """Show news with the progress, if that shows texts."""
        if self._noted is not None:
            self._noted(text)


LINES = 20
"""Plain lines that are written at most, about, for any number of rollouts."""
SECONDS_BETWEEN = 0.5
"""The shortest time between two of them, and between two changes of a notebook's display."""
FIRST_ANSWERS, SECONDS_OF_SILENCE = 2.0, 60.0
"""The time from which answers are written before a rollout ends, and the longest between two such lines."""
BAR = 16
"""Columns of the bar, if there is room for it."""


def status_line(tally: Tally, width: int | None = None) -> str:
    """``12/40  Pass^1 0.500  $0.12  34.1k tokens  1.2/s  0:25 left``, or less of it in ``width`` columns."""
    used, rate = tally.usage, tally.per_second
    parts = {"done": f"{tally.done}/{tally.planned}", "score": f"Pass^1 {score(tally.pass_1)}"}
    if tally.unjudged:
        parts["unjudged"] = f"{tally.unjudged} not judged"
    if used.calls:
        parts["cost"] = money(used)
        parts["tokens"] = f"{tokens(used.input_tokens + used.output_tokens)} tokens"
    if used.calls and tally.done == tally.earlier:
        parts["score"] = f"none over yet, {count(used.calls, 'answer')}"
    if rate is not None:
        parts["rate"] = f"{rate:.1f}/s" if rate >= 1 else f"{rate * 60:.1f}/min"
    if tally.seconds_left is not None and tally.done < tally.planned:
        parts["left"] = f"{duration(tally.seconds_left)} left"
    for name in ("rate", "tokens", "cost"):
        if width is not None and len("  ".join(parts.values())) > width:
            parts.pop(name, None)
    return "  ".join(parts.values())


def outcome_line(outcome: Outcome) -> str:
    verdict = "passed" if outcome.success else f"failed ({outcome.failure}, reward {outcome.reward or 0:g})"
    if outcome.reward is None:
        verdict = f"not judged ({outcome.unjudged_reason})"
    again = "" if outcome.final else ", will be retried"
    trouble = "" if outcome.success else f": {outcome.trouble}"
    return f"{outcome.row_id} #{outcome.index + 1} {verdict}{again}{trouble}"


class PlainProgress(NoProgress):
    """Lines on ``stream``: at fractions of the run, and for every rollout that could not be judged.

    While models answer and no rollout ends, there is a line for the first answers, then one a minute.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._next_done = 0
        self._next_seconds = SECONDS_BETWEEN
        self._next_answer = FIRST_ANSWERS

    def started(self, tally: Tally) -> None:
        already = f", {tally.earlier} of them finished before" if tally.earlier else ""
        self.noted(f"evaluation {tally.eval_id}: {count(tally.planned, 'rollout')}{already}")
        self._next_done = tally.done + max(1, tally.planned // LINES)

    def answered(self, tally: Tally) -> None:
        """Write the status if nothing has been written for a while."""
        if tally.seconds >= self._next_answer:
            self._write(tally)

    def ended(self, outcome: Outcome, tally: Tally) -> None:
        """Write an unjudged outcome, and the status if it is time."""
        if not outcome.scored:
            self.noted(outcome_line(outcome))
        is_time = tally.done >= self._next_done and tally.seconds >= self._next_seconds
        if is_time or tally.done == tally.planned:
            self._write(tally)
            self._next_done = tally.done + max(1, tally.planned // LINES)
            self._next_seconds = tally.seconds + SECONDS_BETWEEN

    def _write(self, tally: Tally) -> None:
        self.noted(status_line(tally))
        self._next_answer = tally.seconds + SECONDS_OF_SILENCE

    def noted(self, text: str) -> None:
        stream = self._stream or sys.stderr
        stream.write(f"{_one_line(text)}\n")
        stream.flush()


class LiveProgress:
    """A bar and the status in one line that is redrawn; unjudged rollouts are printed above it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live: Live | None = None

    def started(self, tally: Tally) -> None:
        """Show the line, unless a person at the terminal plays the agent or the user."""
        if tally.interactive:
            return
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        console = _console(self._stream)

        def line() -> Table:
            status = Text(status_line(tally, console.width - 1), no_wrap=True, overflow="ellipsis")
            table = Table.grid(padding=(0, 1))
            room = min(BAR, console.width - len(status) - 2)
            bar = ProgressBar(total=max(1, tally.planned), completed=tally.done, width=room)
            table.add_row(*([bar] if room > 1 else []), status)
            return table

        console.print(f"evaluation {tally.eval_id}: {count(tally.planned, 'rollout')}")
        self._live = Live(get_renderable=line, console=console, refresh_per_second=4)
        self._live.start()

    def ended(self, outcome: Outcome, tally: Tally) -> None:  # noqa: ARG002 - the protocol's signature
        """Print an unjudged outcome above the line."""
        if not outcome.scored:
            self.noted(outcome_line(outcome))

    def noted(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(tamed(text))

    def closed(self, tally: Tally) -> None:  # noqa: ARG002 - the protocol's signature
        """Leave the last state of the line on the terminal."""
        if self._live is not None:
            self._live.stop()


class NotebookProgress:
    """A display in a notebook's output that is updated: the status, and the last notices below it."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._display: Any = None
        self._next = 0.0

    def started(self, tally: Tally) -> None:
        from IPython.display import display

        self._tally = tally
        self._display = display(self._shown(), raw=True, display_id=True)

    def ended(self, outcome: Outcome, tally: Tally) -> None:
        """Show an unjudged outcome, and the status if it is time."""
        if not outcome.scored:
            self.noted(outcome_line(outcome))
        else:
            self.answered(tally)

    def answered(self, tally: Tally) -> None:
        """Show the status if it is time."""
        if tally.seconds >= self._next:
            self.closed(tally)

    def noted(self, text: str) -> None:
        self._lines = [*self._lines, _one_line(text)][-LINES:]
        if self._display is not None:
            self.closed(self._tally)

    def closed(self, tally: Tally) -> None:
        """Show the status."""
        self._display.update(self._shown(), raw=True)
        self._next = tally.seconds + SECONDS_BETWEEN

    def _shown(self) -> dict[str, str]:
        name = f"evaluation {self._tally.eval_id}: {count(self._tally.planned, 'rollout')}"
        return {"text/plain": "\n".join([name, status_line(self._tally), *self._lines])}


def _one_line(text: str) -> str:
    return tamed(" ".join(text.split("\n")))


def default_progress() -> LiveProgress | NotebookProgress | PlainProgress:
    """The progress for where this process shows its output."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if getattr(shell, "kernel", None) is not None:
        return NotebookProgress()
    return LiveProgress() if sys.stderr.isatty() else PlainProgress()


def _console(stream: TextIO) -> Console:
    """A console without markup; raises ``BrokenPipeError`` if the reader of ``stream`` has gone."""
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:  # rich would end the process with the code of a failed evaluation
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    return PlainConsole(file=stream, markup=False, highlight=False, emoji=False)
