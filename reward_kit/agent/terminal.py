"""Talking to a person at the terminal while the event loop goes on."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from reward_kit.agent.cut_text import tamed
from reward_kit.agent.worker_thread import in_thread
from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from reward_kit.agent.rollout import Rollout


def show(text: str) -> None:
    """Write a line to the terminal; control characters in it are shown, not sent."""
    sys.stdout.write(f"{tamed(text)}\n")
    sys.stdout.flush()


async def ask(prompt: str, *, begins: bool = False) -> str | None:
    """The next line that the person types, without the line end; None at the end of the input.

    Raises ``ModelSetupError`` where there is none for a rollout that ``begins``, and no terminal that would
    take more.
    """
    sys.stdout.write(prompt)
    sys.stdout.flush()
    if sys.stdin.isatty():
        await _typed()
    line = await in_thread(sys.stdin.readline)
    if not line and begins and not sys.stdin.isatty():
        remedy = "Start it in a terminal, or give it a line for each turn; --resume plays the rest."
        raise ModelSetupError("the standard input has ended: nobody is there to play", remedy=remedy)
    return line.rstrip("\r\n") if line else None


class Seat:
    """What a person who plays the agent or the user of a rollout is shown, and the lines that it types."""

    interactive = True

    def __init__(self) -> None:
        self._rollout: Rollout | None = None
        self._begins = True
        self._shown = 0

    def show_news(self, rollout: Rollout, introduction: str) -> None:
        """What was said since the person's last line; at the beginning, what the person has to know first."""
        self._begins = self._rollout is None
        self._rollout = rollout
        if self._begins:
            show(f"\n=== {rollout.row.id}, rollout {rollout.index + 1}: {introduction}\n")
        for line in rollout.lines[self._shown :]:
            show(f"{line.speaker}: {line.text}")
        self._shown = len(rollout.lines) + 1  # what is typed now is on the screen already

    async def typed(self, prompt: str) -> str | None:
        """As ``ask``."""
        return await ask(prompt, begins=self._begins)

    async def close(self) -> None:
        """Say that it is over, and why: it may be without the person's doing. Once, if it sits on both."""
        if self._rollout is None or _ended == [self._rollout.id]:
            return
        _ended[:] = [self._rollout.id]
        detail = f" ({self._rollout.stop_detail})" if self._rollout.stop_detail else ""
        show(f"\n=== the rollout is over: {self._rollout.stop_reason}{detail} ===")


_ended: list[str] = []
"""The rollout whose end was told last."""


async def _typed() -> None:
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
