"""A person at the terminal in the user's place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.rollout import STOP_TOKEN
from reward_kit.agent.terminal import Seat

if TYPE_CHECKING:
    from reward_kit.agent.rollout import Rollout

HELP = f"Type what you say; {STOP_TOKEN} or the end of input (Ctrl-D) ends the rollout."


class HumanUser(Seat):
    """Shows what the agent says and takes the user's lines from the keyboard, until the end of the input."""

    async def respond(self, rollout: Rollout) -> str:
        """What the person says."""
        part = (rollout.task.sim_user_prompt or "").strip()
        introduction = ["you are the user ===", *([part] if part else []), HELP]
        self.show_news(rollout, "\n".join(introduction))
        while True:
            typed = await self.typed("user> ")
            if typed is None:
                return STOP_TOKEN
            if typed.strip():
                return typed.strip()
