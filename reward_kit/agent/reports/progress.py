"""How far an evaluation is, while it runs: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reward_kit.agent.cut_text import tamed
from reward_kit.agent.reports.plain_console import plain_console
from reward_kit.agent.reports.wording import count, duration, money, score, tokens

if TYPE_CHECKING:
    from typing import TextIO

    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.tally import Tally

LINES = 20
"""About as many plain lines are written at most, however many rollouts there are."""
SECONDS_BETWEEN = 0.5
"""And this far apart at least."""


def status_line(tally: Tally) -> str:
    """``12/40  Pass^1 0.500  $0.12  34.1k tokens  1.2/s  0:25 left``."""
    parts = [f"{tally.done}/{tally.planned}", f"Pass^1 {score(tally.pass_1)}"]
    if tally.unjudged:
        parts.append(f"{tally.unjudged} not judged")
    if tally.usage.calls:
        used = tally.usage
        parts += [money(used), f"{tokens(used.input_tokens + used.output_tokens)} tokens"]
    if tally.per_second is not None:
        parts.append(_rate(tally.per_second))
    if tally.seconds_left is not None and tally.done < tally.planned:
        parts.append(f"{duration(tally.seconds_left)} left")
    return "  ".join(parts)


def outcome_line(outcome: RolloutOutcome) -> str:
    """One rollout in a line."""
    if outcome.reward is None:
        verdict = f"not judged ({outcome.unjudged_reason})"
    else:
        verdict = "passed" if outcome.success else f"failed ({outcome.failure}, reward {outcome.reward:g})"
    again = "" if outcome.final else ", will be tried again"
    trouble = "" if outcome.success else f": {outcome.trouble}"
    return f"{outcome.row_id} #{outcome.index + 1} {verdict}{again}{trouble}"


class PlainProgress:
    """Lines on ``stream``: at parts of the way, and for every rollout that could not be judged."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._given = stream
        self._next = 0
        self._said = 0.0

    def started(self, tally: Tally) -> None:
        already = f", {tally.earlier} of them done already" if tally.earlier else ""
        self._say(f"evaluation {tally.eval_id}: {count(tally.planned, 'rollout')}{already}")
        self._next = self._after(tally)

    def ended(self, outcome: RolloutOutcome, tally: Tally) -> None:
        if not outcome.judged:
            self._say(outcome_line(outcome))
        last = tally.done == tally.planned
        if last or (tally.done >= self._next and tally.seconds - self._said >= SECONDS_BETWEEN):
            self._say(status_line(tally))
            self._next = self._after(tally)
            self._said = tally.seconds

    def noted(self, text: str) -> None:
        self._say(text)

    def closed(self, tally: Tally) -> None:
        """All is said."""

    def _after(self, tally: Tally) -> int:
        step = max(1, tally.planned // LINES)
        return min(tally.planned, (tally.done // step + 1) * step)

    def _say(self, text: str) -> None:
        stream = self._given or sys.stderr  # asked now: code of a bundle may have closed the one before
        with suppress(ValueError):
            stream.write(tamed(" ".join(text.split("\n"))) + "\n")
            stream.flush()


class LiveProgress:
    """One line on a terminal that keeps up; rollouts that could not be judged stay above it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._live: Any = None

    def started(self, tally: Tally) -> None:
        """Show the line."""
        if tally.interactive:  # the terminal is the person's
            return
        from rich.live import Live
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        def line() -> Table:
            table = Table.grid(padding=(0, 1))
            table.add_row(
                ProgressBar(total=max(1, tally.planned), completed=tally.done, width=16),
                Text(status_line(tally), no_wrap=True, overflow="ellipsis"),
            )
            return table

        console = plain_console(self._stream)
        console.print(f"evaluation {tally.eval_id}: {count(tally.planned, 'rollout')}")
        self._live = Live(get_renderable=line, console=console, refresh_per_second=4)
        self._live.start()

    def ended(self, outcome: RolloutOutcome, tally: Tally) -> None:  # noqa: ARG002 - the protocol's signature
        if not outcome.judged and self._live is not None:
            self._live.console.print(outcome_line(outcome))

    def noted(self, text: str) -> None:
        if self._live is not None:
            self._live.console.print(tamed(text))

    def closed(self, tally: Tally) -> None:  # noqa: ARG002 - the protocol's signature
        """Leave the last line standing."""
        if self._live is not None:
            self._live.stop()


def _rate(per_second: float) -> str:
    if per_second >= 1:
        return f"{per_second:.1f}/s"
    return f"{per_second * 60:.1f}/min"
