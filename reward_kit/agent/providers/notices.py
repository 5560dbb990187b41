"""What people are told of a provider that does not answer: when it begins, now and then, and when it ends."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.errors import ModelError

AGAIN = 60.0
"""Seconds until the same is told again."""
WORTH_SAYING = 10.0
"""Seconds; a pause from here on is told."""
LONGEST_REASON = 100
ASKS, BACK = "asks", "back"
"""States of a provider: it asks to be left alone, it answers again; any other says how it fails."""


class News:
    """What has been told of one provider lately. All times are seconds of one clock."""

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        self._asked = -math.inf

    def fresh(self, state: str, now: float) -> bool:
        """Whether ``state`` is worth telling, which then counts as told.

        That a provider is ``BACK`` is so once after each time that it failed, anything else once a minute.
        """
        if state == BACK:
            failed = bool(self._told)
            self._told.clear()
            return failed
        last = self._asked if state == ASKS else self._told.get(state, -math.inf)
        if now - last < AGAIN:
            return False
        if state == ASKS:
            self._asked = now
        else:
            self._told[state] = now
        return True


class Notices(Protocol):
    """Where a gate's notices go."""

    def tell(self, state: str, text: str) -> None:
        """Tell ``text`` if ``state`` is news."""


class OwnNotices:
    """Notices of one gate that nobody else sees to."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._news = News()

    def tell(self, state: str, text: str) -> None:
        """Tell ``text`` if ``state`` is news."""
        if self._news.fresh(state, asyncio.get_running_loop().time()):
            self._tell(text)


class Voice:
    """Says what becomes of the provider ``name``; where its words go is the business of ``notices``."""

    def __init__(self, name: str, notices: Notices) -> None:
        self._name = name
        self._notices = notices

    def down(self, began: str, fault: ModelError, wait: float) -> None:
        """It has failed again, and is tried again after ``wait`` seconds."""
        again = f"trying again in {_duration(max(0.0, wait))}"
        self._say(_kind(fault), f"does not answer since {began} ({_reason(fault)}); {again}")

    def refuses(self, began: str, fault: ModelError) -> None:
        """It has refused all calls for a while."""
        self._say(_kind(fault), f"takes no calls since {began} ({_reason(fault)}); waiting for it")

    def asks(self, seconds: float, fault: ModelError) -> None:
        """It wants to be left alone."""
        self._say(ASKS, f"asks to be left alone for {_duration(seconds)} (HTTP {fault.status})")

    def back(self, seconds: float) -> None:
        """It answers again."""
        self._say(BACK, f"answers again after {_duration(seconds)}")

    def _say(self, state: str, text: str) -> None:
        self._notices.tell(state, f"{self._name} {text}")


def _kind(fault: ModelError) -> str:
    """How a provider fails, as a state: a number that changes with each answer is no news."""
    return f"{fault.status} {fault.no_answer}"


def _reason(fault: ModelError) -> str:
    return fault.fault[:LONGEST_REASON]


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
