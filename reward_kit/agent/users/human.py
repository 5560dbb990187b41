"""A person at the terminal in the user's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent import terminal
from reward_kit.agent.rollout import STOP_TOKEN

if TYPE_CHECKING:
    from reward_kit.agent.rollout import Rollout


class HumanUser:
    """Shows what the agent says and takes the user's lines from the keyboard, until the end of the input."""

    interactive = True

    def __init__(self) -> None:
        self._shown = 0
        self._rollout: Rollout | None = None

    async def respond(self, rollout: Rollout) -> str:
        """What the person says."""
        self._rollout = rollout
        begins = self._shown == 0
        if begins:
            terminal.show(f"\n=== {rollout.row.id}, rollout {rollout.index + 1}: you are the user ===")
            if rollout.task.sim_user_prompt:
                terminal.show(rollout.task.sim_user_prompt.strip())
            terminal.show(f"Type what you say; {STOP_TOKEN} or the end of input (Ctrl-D) ends the rollout.\n")
        for line in rollout.lines[self._shown :]:
            terminal.show(f"{line.speaker}: {line.text}")
        self._shown = len(rollout.lines) + 1  # the line below is on the screen already
        while True:
            typed = await terminal.ask("user> ", begins=begins)
            if typed is None:
                return STOP_TOKEN
            if typed.strip():
                return typed.strip()

    async def close(self) -> None:
        """Say that it is over: it may be without the person's doing."""
        terminal.show_end(self._rollout)
