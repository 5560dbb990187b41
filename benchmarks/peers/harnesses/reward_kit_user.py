"""The user of the reward_kit run: a second wish after the first reply, then the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from conversation import WISHES

if TYPE_CHECKING:
    from reward_kit.agent.rollout.rollout import Rollout


async def second_wish(rollout: Rollout) -> str:
    """The next line of the user."""
    return WISHES[1] if rollout.turns < 2 else "###STOP###"
