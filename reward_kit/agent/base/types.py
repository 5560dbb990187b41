"""Plain types of rollouts: messages, model answers, tokens and cost, tool calls, stop reasons."""

from __future__ import annotations

import reprlib
import time
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal, Protocol, get_args

from reward_kit.agent.base.text import foreign_name

Role = Literal["agent", "user", "judge"]
"""Owner of a model call; ``judge``: the reward, which asks with its own client."""
ROLES = get_args(Role)
Side = Literal["agent", "user"]
"""The owner of a tool call."""
SIDES: tuple[Side, ...] = get_args(Side)

StopReason = Literal[
    "user_stop",
    "terminal_tool",
    "agent_done",
    "max_steps",
    "timeout",
    "budget",
    "agent_error",
    "user_error",
    "infrastructure_error",
]

AGENT_STOPS = ("agent_done", "agent_error")
"""Reasons for which an agent or a tool may stop a rollout; both are judged."""
UNJUDGED_STOPS = ("user_error", "infrastructure_error")
"""Reasons that are not the agent's fault: such a rollout has no reward and counts in no metric."""


class RolloutStopped(BaseException):
    """The rollout is over. A ``BaseException``: an agent that catches ``Exception`` must not swallow it."""


STOP_TOKEN = "###STOP###"  # noqa: S105 - the word that ends a conversation, no secret

MOST_COUNTED = 2**53
"""The largest number that is counted: larger whole numbers are not exact in JSON elsewhere."""
LATEST = 2.5e11
"""Unix seconds of the last times that a calendar can name, in the year 9892."""

Message = dict[str, Any]
"""One chat message in the OpenAI format."""

Violations = dict[str, list[dict[str, Any]]]
"""The rows that each rule of a bundle has returned, by column; an empty list for a rule that was kept."""


def openai_call(call_id: str, name: str, arguments: Any) -> dict[str, Any]:
    """A tool call as an assistant message has it; its arguments are usually JSON text."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@dataclass(slots=True)
class Usage:
    """Tokens and cost of one or many model calls.

    ``cached_tokens`` are part of ``input_tokens``, ``reasoning_tokens`` part of ``output_tokens``.
    ``cost`` is in US dollars, over the priced calls; ``unpriced_calls`` counts those without a known price.
    ``reused_calls`` were answered from the cache: their tokens and cost are those of the call that was made
    once; ``reused_cost`` is the share of ``cost`` that was not paid again, ``reused_tokens`` that of the
    tokens.
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
        """US dollars that were paid for these calls now."""
        return self.cost - self.reused_cost

    @property
    def known_cost(self) -> float | None:
        """``cost``; None if the price of a call is not known."""
        return None if self.unpriced_calls else self.cost

    @property
    def tokens(self) -> int:
        """Input and output tokens."""
        return self.input_tokens + self.output_tokens

    @property
    def fresh_tokens(self) -> int:
        """Tokens that were used now."""
        return self.tokens - self.reused_tokens

    def add(self, other: Usage) -> None:
        """Add the counts of ``other``."""
        self.calls += other.calls
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cost += other.cost
        if other.cached_tokens:
            self.cached_tokens += other.cached_tokens
        if other.reasoning_tokens:
            self.reasoning_tokens += other.reasoning_tokens
        if other.unpriced_calls:
            self.unpriced_calls += other.unpriced_calls
        if other.reused_calls:
            self.reused_calls += other.reused_calls
            self.reused_cost += other.reused_cost
            self.reused_tokens += other.reused_tokens


_COUNTERS = tuple(one.name for one in fields(Usage))
_counts = attrgetter(*_COUNTERS)


def counted(usage: Any, before: Usage | None) -> Usage:
    """A copy of what foreign code counts, with whole numbers of tokens.

    Raises ``TypeError`` for what is no ``Usage``, and for numbers that would spoil sums: ``before`` is one.
    """
    if not isinstance(usage, Usage):
        raise TypeError(f"count_usage() takes a Usage, not a {type(usage).__name__}")
    values, sums = _counts(usage), _counts(before or _NOTHING)
    if tuple(map(type, values)) == _TYPES and min(values) >= 0 and sum(values) + sum(sums) <= MOST_COUNTED:
        return Usage(*values)
    numbers: list[Any] = []
    for name, number, already in zip(_COUNTERS, values, sums, strict=True):
        check_number(f"Usage.{name}", number)
        if number > MOST_COUNTED - already:
            raise TypeError(f"Usage.{name} is above {MOST_COUNTED} in all, which counts nothing")
        numbers.append(number if "cost" in name else int(number))
    return Usage(*numbers)


_NOTHING = Usage()
_TYPES = tuple(map(type, _counts(_NOTHING)))


def check_one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    """Raise ``ValueError`` for a value that is not one of the ``known`` words."""
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name} is {' or '.join(known)}, not {reprlib.repr(value)}")


def check_number(name: str, value: Any, most: float = MOST_COUNTED) -> None:
    """Raise ``TypeError`` for a value that would spoil a sum: no number, below 0, or above ``most``."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not value >= 0:
        raise TypeError(f"{name} is {reprlib.repr(value)}, not a number from 0")
    if value > most:  # Python may refuse to write it
        raise TypeError(f"{name} is above {most}, which counts nothing")


@dataclass(slots=True)
class Tokens:
    """The tokens of a model call, as its server counted them.

    ``prompt`` and ``completion`` are token ids; ``logprobs`` are the log-probabilities of the completion,
    empty if the server gave none. In a trace, the first ``shared`` tokens of the prompt are left out: the
    prompt and completion of the agent's former call with tokens begin with the same. ``sent`` is the number
    of messages of the rollout that were sent, None if the agent sent others.
    """

    prompt: list[int]
    completion: list[int]
    logprobs: list[float] = field(default_factory=list)
    shared: int = 0
    sent: int | None = None


@dataclass(slots=True)
class Completion:
    """One answer of a model.

    ``message`` is the assistant message as it belongs in the history (``content``, ``tool_calls``, and the
    reasoning fields that the provider wants back). ``seconds`` is the time the answer took, retries
    included (0: unknown; the rollout measures it), ``waited`` the seconds before, in which rate limits
    delayed it. ``tokens`` are those that the server returned, for training.
    """

    message: Message
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    model: str = ""
    seconds: float = 0.0
    waited: float = 0.0
    tokens: Tokens | None = None


class Model(Protocol):
    """A language model that answers chat messages; ``LiteLLMModel`` is the built-in one.

    Optional extras are ``async def open(self)`` and ``async def close(self)``, called before the first
    rollout and at the end, and ``def identity(self) -> dict``: everything besides the conversation that its
    answers depend on (name, address, settings). Answers of a model without one are never cached.
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
        """Answer ``messages``; raises ``ModelError`` if there is no answer.

        ``messages`` and ``tools`` must not be changed: the rollout continues with them. Without
        ``parallel_tool_calls`` an answer should have at most one tool call.
        """
        ...


@dataclass(slots=True)
class ToolCall:
    """One tool call as it ran.

    ``step`` and ``turn`` count from 1. ``arguments`` is the parsed object, or the text that could not be
    parsed. ``started`` is in Unix seconds; ``changes`` are the rows that the call changed. ``by`` is the side
    that made it: "agent" or "user".
    """

    index: int
    id: str
    step: int
    turn: int
    name: str
    arguments: dict[str, Any] | str
    content: str
    status: str
    changes: list[dict[str, Any]]
    started: float
    seconds: float
    by: Side = "agent"


@dataclass(slots=True)
class ModelCall:
    """One model call as it was made.

    ``started`` is in Unix seconds, ``seconds`` with retries; ``waited`` are the seconds before, in which rate
    limits delayed it. ``answer`` is the text of the simulated user's model, with thoughts and rejected drafts
    (that of the agent's model is in the messages). If ``cached``, usage and ``seconds`` are those of the call
    that was made once. ``error`` is the reason for having no answer; then ``finish_reason`` is ``error`` and
    the usage is empty. ``fault`` is a fault of an answer to the agent (``models.answer_parts``). ``tokens``
    are those of a call of the agent whose server returned them.
    """

    role: Role
    step: int
    turn: int
    model: str
    finish_reason: str
    usage: Usage
    started: float
    seconds: float
    answer: str | None = None
    cached: bool = False
    error: str | None = None
    waited: float = 0.0
    fault: str | None = None
    tokens: Tokens | None = None


def judge_call(rollout: Any, usage: Any, model: Any, seconds: float) -> ModelCall:
    """A model call of the reward, counted in ``rollout.usage``; raises ``TypeError`` as ``counted`` does."""
    used = counted(usage, rollout.usage.get("judge"))
    check_number("seconds", seconds)
    used.calls = used.calls or 1
    rollout.usage.setdefault("judge", Usage()).add(used)
    name, started = foreign_name(model), time.time()
    return ModelCall("judge", rollout.steps, rollout.turns, name, "stop", used, started, seconds)
