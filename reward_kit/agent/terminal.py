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


def show_end(rollout: Rollout | None) -> None:
    """Tell the person that the rollout which it has played is over, and why; once, though it plays both."""
    if rollout is None or _ended == [rollout.id]:
        return
    _ended[:] = [rollout.id]
    detail = f" ({rollout.stop_detail})" if rollout.stop_detail else ""
    show(f"\n=== the rollout is over: {rollout.stop_reason}{detail} ===")


_ended: list[str] = []
"""The rollout whose end was told last."""


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
