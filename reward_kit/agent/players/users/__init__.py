"""Simulated users: the protocol of a user, and the built-in ones, one module per strategy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from reward_kit.agent.rollout.rollout import UserRollout


class User(Protocol):
    """The other side of a conversation: ``respond`` returns the user's next line.

    The stop token ``###STOP###`` anywhere in it ends the rollout. ``rollout.sim_user_prompt`` says who the
    user is. A user is made anew for each rollout, so it may keep state. The optional extras are those of an
    ``Agent``.
    """

    async def respond(self, rollout: UserRollout) -> str: ...
