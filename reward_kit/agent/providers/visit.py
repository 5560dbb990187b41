"""A call that goes through a gate."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.providers.hard_limits import Taken


class Visit:
    """One call on its way through the gate, with all its attempts.

    ``size`` is the number of characters of its request, ``waited`` the seconds for which it was not let
    through.
    """

    __slots__ = ("again", "generation", "refused", "sent", "size", "taken", "ticket", "waited")

    def __init__(self, size: int = 0) -> None:
        self.size = size
        self.ticket = -1
        self.generation = 0
        self.again = 0
        self.taken: Taken | None = None
        self.refused: float | None = None
        self.sent = 0.0
        self.waited = 0.0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The time in this block is one of waiting."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            self.waited += loop.time() - began
