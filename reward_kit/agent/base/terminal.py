"""A person at the terminal, who plays the agent, the simulated user, or both."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import tamed
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from reward_kit.agent.rollout.rollout import Rollout

_announced_end: list[str] = []
"""The id of the rollout whose end was shown last: one person may play both sides."""


def show(text: str) -> None:
    """Write a line to the terminal; control characters in it are shown, not sent."""
    sys.stdout.write(f"{tamed(text)}\n")
    sys.stdout.flush()


class Person:
    """Someone at the terminal who plays the agent or the user of a rollout."""

    interactive = True

    def __init__(self) -> None:
        self._rollout: Rollout | None = None
        self._begins = True
        self._shown = 0

    def show_news(self, rollout: Rollout, introduction: str) -> None:
        """Show the lines said since the person's last one; at the beginning, ``introduction`` first."""
        self._begins = self._rollout is None
        self._rollout = rollout
        lines = rollout.lines
        if self._begins:
            show(f"\n=== {rollout.row_id}, rollout {rollout.index + 1}: {introduction}\n")
        for line in lines[self._shown :]:
            show(f"{line.speaker}: {line.text}")
        self._shown = len(lines) + 1  # what is typed now is on the screen already

    async def typed(self, prompt: str) -> str | None:
        """The next line that the person types, without the line end; None at the end of the input.

        Raises ``ModelSetupError`` if a rollout begins and the input has ended, unless it is a terminal.
        """
        sys.stdout.write(prompt)
        sys.stdout.flush()
        if sys.stdin.isatty():
            await _wait_for_line()
        line = await in_thread(sys.stdin.readline)
        if not line and self._begins and not sys.stdin.isatty():
            remedy = "Start it in a terminal, or give it a line for each turn; --resume plays the rest."
            raise ModelSetupError("the standard input has ended: nobody is there to play", remedy=remedy)
        return line.rstrip("\r\n") if line else None

    async def close(self) -> None:
        """Show that the rollout is over, and why: it may be without the person's doing."""
        if self._rollout is None or _announced_end == [self._rollout.id]:
            return
        _announced_end[:] = [self._rollout.id]
        detail = f" ({self._rollout.stop_detail})" if self._rollout.stop_detail else ""
        show(f"\n=== the rollout is over: {self._rollout.stop_reason}{detail} ===")


async def _wait_for_line() -> None:
    """Wait for a line at the terminal without reading it.

    A thread that reads outlives a rollout whose time is over, and takes the line typed for the next one.
    """
    loop = asyncio.get_running_loop()
    there = asyncio.Event()
    try:
        loop.add_reader(sys.stdin, there.set)
    except NotImplementedError:  # on Windows
        return
    try:
        await there.wait()
    finally:
        loop.remove_reader(sys.stdin)
