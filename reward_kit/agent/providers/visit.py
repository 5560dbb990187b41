"""A call that goes through a gate."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

from reward_kit.agent.deadline import held_up
from reward_kit.agent.providers.caller import Caller

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.providers.hard_limits import Taken


class Visit:
    """One call on its way through the gate, with all its attempts.

    ``size`` is the number of characters of its request, ``caller`` who makes it, ``waited`` the seconds for
    which it was not let through, ``not_before`` the moment before which it was told not to come back. One
    that is ``ahead`` is to be sent at once, also where others wait. Of its last attempt: when it was
    ``sent``, as which ``number`` of all and in which ``place`` of its ``generation``, ``among`` how many
    under way, itself included, and how many good ``answers`` say nothing of it.
    """

    __slots__ = (
        "again",
        "ahead",
        "among",
        "answers",
        "caller",
        "generation",
        "not_before",
        "number",
        "place",
        "sent",
        "size",
        "taken",
        "ticket",
        "waited",
    )

    def __init__(self, size: int = 0, caller: Caller | None = None) -> None:
        self.size = size
        self.caller = caller or Caller()
        self.ticket = -1
        self.generation = 0
        self.number = 0
        self.place = 0
        self.among = 0
        self.answers = 0
        self.again = 0
        self.ahead = False
        self.taken: Taken | None = None
        self.sent = 0.0
        self.waited = 0.0
        self.not_before = 0.0

    async def its_time(self) -> None:
        """Wait until it may come back."""
        rest = self.not_before - asyncio.get_running_loop().time()
        if rest > 0:
            with held_up(), self.waiting():
                await asyncio.sleep(rest)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """The time in this block is one of waiting."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            yield
        finally:
            self.waited += loop.time() - began
