"""A user that reflects on a line that was turned down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.users.verify import VerifyUser, review

if TYPE_CHECKING:
    from reward_kit.agent.rollout import Rollout


class ReflectionUser(VerifyUser):
    """Drafts a line and has it judged; if it is refused, the model says why, and what to say instead.

    With that it drafts once more. The second draft is said even if it is refused too: it is known that the
    first is bad, and the second was written with the knowledge why.
    """

    drafts = 2

    async def advice(self, rollout: Rollout, refused: str) -> str:
        """What is wrong with the refused line, in the model's words."""
        reflection = await review(rollout, "user_reflect", refused)
        return f"{reflection.strip()}\n" if reflection.strip() else ""
