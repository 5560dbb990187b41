"""What a model call gives back, and what it cost: the types that agents, users and the model layer share."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Protocol

MOST_COUNTED = 2**53
"""Larger whole numbers are others when they are read as JSON elsewhere; sums of these stay finite."""

LATEST = 2.5e11
"""Unix seconds of the last times that a calendar can name, in the year 9892."""
MOST_STEPS = 1_000_000
"""No rollout has more steps or turns; reports have a number for each turn."""

Message = dict[str, Any]
"""One chat message in the OpenAI format."""


@dataclass(slots=True)
class Usage:
    """Tokens and cost of one or many model calls.

    ``cached_tokens`` are part of ``input_tokens``, ``reasoning_tokens`` part of ``output_tokens``.
    ``cost`` is in US dollars, over the priced calls; ``unpriced_calls`` counts those without a known price.
    ``reused_calls`` were answered from the cache of answers: their tokens and cost are those of the call that
    was made once; ``reused_cost`` is what of ``cost`` was therefore not paid again, ``reused_tokens`` is how
    many of the tokens were not used again.
    """

    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float = 0.0
    unpriced_calls: int = 0
    reused_calls: int = 0
    reused_cost: float = 0.0
    reused_tokens: int = 0

    @property
    def paid(self) -> float:
        """US dollars that these calls cost now."""
        return self.cost - self.reused_cost

    @property
    def fresh_tokens(self) -> int:
        """Input and output tokens that were used now."""
        return self.input_tokens + self.output_tokens - self.reused_tokens

    def check(self) -> None:
        """Raise ``TypeError`` for what would spoil sums: no number, below 0, above ``MOST_COUNTED``."""
        for value in _NUMBERS(self):
            if value.__class__ not in _PLAIN or not 0 <= value <= MOST_COUNTED:
                self._check_closely()
                return

    def _check_closely(self) -> None:
        for one in fields(self):
            check_number(f"Usage.{one.name}", getattr(self, one.name))

    def add(self, other: Usage) -> None:
        """Count ``other`` in."""
        self.calls += other.calls
        self.input_tokens += other.input_tokens
        self.cached_tokens += other.cached_tokens
        self.output_tokens += other.output_tokens
        self.reasoning_tokens += other.reasoning_tokens
        self.cost += other.cost
        self.unpriced_calls += other.unpriced_calls
        self.reused_calls += other.reused_calls
        self.reused_cost += other.reused_cost
        self.reused_tokens += other.reused_tokens


def check_number(name: str, value: Any, most: float = MOST_COUNTED) -> None:
    """Raise ``TypeError`` for what would spoil a sum: no number, below 0, or above ``most``."""
    if value.__class__ is float and 0.0 <= value <= most:
        return  # nearly always
    if isinstance(value, int | float) and value > most:  # Python may refuse to write it
        raise TypeError(f"{name} is above {most}, which counts nothing")
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise TypeError(f"{name} is {value!r}, not a number from 0")


_NUMBERS = attrgetter(*(one.name for one in fields(Usage)))
_PLAIN = (int, float)


@dataclass(slots=True)
class Completion:
    """One answer of a model.

    ``message`` is the assistant message as it belongs in the history (``content``, ``tool_calls``, and the
    reasoning fields that the provider wants back); ``seconds`` is the time the answer took, retries
    included (0: not told; the rollout then measures it), ``waited`` the seconds, apart from these, for which
    limits of calls held it back.
    """

    message: Message
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    model: str = ""
    seconds: float = 0.0
    waited: float = 0.0


class Model(Protocol):
    """Something that answers chat messages; ``reward_kit.agent.llm.LiteLLMModel`` is the built-in one.

    Optional extras are ``async def open(self)`` and ``async def close(self)``, called before the first
    rollout and at the end, and ``def identity(self) -> dict``: what decides its answers besides the
    conversation (name, address, settings). Answers of a model without one are never taken from the cache.
    """

    name: str

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        parallel_tool_calls: bool = True,
    ) -> Completion:
        """Answer ``messages``; raise ``ModelError`` where no answer could be had.

        ``messages`` and ``tools`` are not to be changed: the rollout goes on with the one, and others share
        the other. Without ``parallel_tool_calls`` at most one tool call is wanted in an answer.
        """
        ...
