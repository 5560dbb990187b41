"""A call that goes through a gate."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from reward_kit.agent.providers.hard_limits import Taken


class Visit:
    """One call on its way through the gate, with all its attempts. ``size``: characters of its request."""

    __slots__ = ("again", "generation", "refused", "sent", "size", "taken", "ticket")

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.ticket = -1
        self.generation = 0
        self.again = 0
        self.taken: Taken | None = None
        self.refused: float | None = None
        self.sent = 0.0
