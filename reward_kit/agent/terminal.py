"""Talking to a person at the terminal while the event loop goes on."""

from __future__ import annotations

import sys

from reward_kit.agent.cut_text import tamed
from reward_kit.agent.worker_thread import in_thread


def show(text: str) -> None:
    """Write a line to the terminal; control characters in it are shown, not sent."""
    sys.stdout.write(f"{tamed(text)}\n")
    sys.stdout.flush()


async def ask(prompt: str) -> str | None:
    """The next line that the person types, without the line end; None at the end of the input."""
    sys.stdout.write(prompt)
    sys.stdout.flush()
    line = await in_thread(sys.stdin.readline)
    return line.rstrip("\r\n") if line else None
