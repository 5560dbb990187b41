"""Requests and tokens per minute that calls to one provider never exceed."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from reward_kit.agent.providers.pace import MINUTE, Pace, TokenGuess

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.completion import Usage


@dataclass(slots=True)
class Taken:
    """What one call has taken of the limits.

    ``size`` is the number of characters of its request, ``tokens`` what it is guessed to use. ``sent`` says
    that it counts as a request from a known moment. ``number`` is its name where another process counts.
    """

    size: int
    tokens: int = 0
    sent: bool = False
    number: int = 0


class Limits(Protocol):
    """What a gate asks before it lets a call through."""

    wake: Callable[[], None]
    """Called when a call may go for which ``delay`` was infinite."""

    @property
    def wants_size(self) -> bool:
        """Whether it matters how long a request is."""

    def delay(self, size: int) -> float:
        """Seconds until a call of ``size`` may go; infinite if something else has to happen first."""

    def take(self, size: int) -> Taken:
        """Count a call that may go; ``settle`` has to follow."""

    def sent(self, taken: Taken) -> None:
        """The call is being sent; where nobody knows when, it counts from its end."""

    def settle(self, taken: Taken, usage: Usage | None, *, spent: bool = True) -> None:
        """The call is over; without ``usage`` it has used what was guessed, or nothing if not ``spent``."""

    def release(self) -> None:
        """No call waits for these limits alone any more."""


class HardLimits:
    """``rpm`` requests and ``tpm`` tokens in any ``window`` seconds; None: as many as you like.

    Used in one event loop.
    """

    def __init__(self, rpm: float | None, tpm: float | None, *, window: float = MINUTE) -> None:
        self.wake: Callable[[], None] = _nothing
        self._requests = Pace(rpm, window=window) if rpm else None
        self._tokens = Pace(tpm, window=window) if tpm else None
        self._guess = TokenGuess()
        self._under_way = 0

    @property
    def wants_size(self) -> bool:
        """Whether it matters how long a request is."""
        return self._tokens is not None

    def delay(self, size: int) -> float:
        """Seconds until a call of ``size`` may go; infinite if another has to end first."""
        wait = 0.0
        if self._requests is not None:
            wait = self._requests.delay(1, _now())
        if self._tokens is not None:
            if self._under_way and not self._guess.known:
                return math.inf
            wait = max(wait, self._tokens.delay(self._guess.tokens(size), _now()))
        return wait

    def take(self, size: int) -> Taken:
        """Count a call; ``sent`` and ``settle`` have to follow, or ``give_back``."""
        taken = Taken(size)
        self._under_way += 1
        if self._requests is not None:
            self._requests.take(1, _now())
        if self._tokens is not None:
            taken.tokens = self._guess.tokens(size)
            self._tokens.take(taken.tokens, _now())
        return taken

    def sent(self, taken: Taken) -> None:
        """The call is being sent: the minute of its request begins."""
        if not taken.sent and self._requests is not None:
            self._requests.settle(1, 1, _now())
        taken.sent = True

    def settle(self, taken: Taken, usage: Usage | None, *, spent: bool = True) -> None:
        """The call is over; without ``usage`` it has used what was guessed, or nothing if not ``spent``."""
        self.sent(taken)
        self._under_way -= 1
        if self._tokens is None:
            return
        actual = taken.tokens if spent else 0
        if usage is not None:
            actual = usage.input_tokens + usage.output_tokens
            self._guess.learn(taken.size, usage)
        self._tokens.settle(taken.tokens, actual, _now())

    def give_back(self, taken: Taken) -> None:
        """The call was not made after all."""
        if not taken.sent and self._requests is not None:
            self._requests.settle(1, 0, _now())
        taken.sent = True
        self.settle(taken, None, spent=False)

    def release(self) -> None:
        """Nothing is kept here for calls that wait."""


def _nothing() -> None:
    """Wakes nobody: who waits for these limits knows for how long, or waits for calls of its own."""


def _now() -> float:
    return asyncio.get_running_loop().time()
