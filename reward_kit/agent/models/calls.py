"""Model calls: the rollout that makes one, and the limiters of the providers that are asked.

A model with a method ``for_rollout(caller)`` is asked through its result, for each attempt at a rollout.
"""

from __future__ import annotations

import logging
import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.redaction import keep_secrets, public_address, secrets_in
from reward_kit.agent.models.errors import cannot_be_read, headers_of, model_error
from reward_kit.agent.models.limiter import Limiter, ask
from reward_kit.agent.models.limits import START
from reward_kit.agent.models.providers import DEFAULT_BASE, OPENAI, server_variables

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    from reward_kit.agent.base.deadline import Deadline
    from reward_kit.agent.base.types import Completion, Message, Model, Role
    from reward_kit.errors import ModelError

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Caller:
    """One attempt at a rollout.

    Callers of the same ``task`` may share a fault that makes their calls fail. ``index`` and ``attempt`` are
    numbers from 0. Playing the rollout sets ``clock``. In ``sent``, a model keeps what its next request
    repeats.
    """

    task: Hashable = field(default_factory=object)
    index: int = 0
    attempt: int = 0
    clock: Deadline | None = None
    sent: dict[Any, Any] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class Call:
    """A model call with all its attempts; ``size`` is the number of characters of its request.

    ``waited`` are the seconds for which the limiter held it back. The limiter keeps the other fields.
    """

    size: int = 0
    caller: Caller = field(default_factory=Caller)
    waited: float = 0.0
    not_before: float = 0.0
    sent: float = 0.0
    failures: int = 0
    failing_since: float = 0.0
    score_before: int = 0
    reserved: int = 0
    is_sent: bool = False

    def unclocked(self) -> AbstractContextManager[None]:
        """Pause the rollout's clock in a block."""
        return nullcontext() if self.caller.clock is None else self.caller.clock.paused()


@dataclass(slots=True)
class Limiters:
    """The limiters of one evaluation, by provider and address: agent and user share one at the same place.

    ``ceiling``, ``rpm``, ``tpm`` and ``patience`` are those of each limiter. ``tell`` gets messages for
    people. ``used`` is True once a model's calls go through them.
    """

    ceiling: int = 10
    rpm: float | None = None
    tpm: float | None = None
    patience: float = 900.0
    tell: Callable[[str], None] | None = None
    used: bool = False
    _limiters: dict[tuple[str, str], Limiter] = field(default_factory=dict)

    def of(self, provider: str, address: str | None) -> Limiter:
        """The limiter of a provider; without an ``address`` at its usual one."""
        place = (address or (DEFAULT_BASE if provider == OPENAI else "")).rstrip("/")
        limiter = self._limiters.get((provider, place))
        if limiter is None:
            name = f"{provider} at {public_address(place)}" if place else provider
            bounds: Any = {"ceiling": self.ceiling, "rpm": self.rpm, "tpm": self.tpm}
            limiter = Limiter(name, patience=self.patience, tell=self._say, **bounds)
            self._limiters[provider, place] = limiter
        return limiter

    async def room(self) -> int:
        """Wait until no call waits; returns how many rollouts may begin so that their calls do not pile up.

        As many as calls may be in flight, or 8, since not every rollout is calling a model all the time.
        """
        while busy := next((one for one in self._limiters.values() if one.waiting), None):
            async with busy.queue:  # until the calls that wait now are let through
                pass
        if not self._limiters:
            return int(START)
        return max(8, sum(limiter.room for limiter in self._limiters.values()))

    def _say(self, text: str) -> None:
        logger.info("%s", text)
        if self.tell is not None:
            self.tell(text)


class Request(NamedTuple):
    """A request to a model of a provider: its address, its number of characters, and what is sent.

    Sending it puts the URL called into ``called``, and the kind of the answer behind it, where it is known.
    """

    model: str
    provider: str
    address: str | None
    size: int
    body: Any
    called: list[str]


@dataclass(eq=False, repr=False)
class RemoteModel:
    """A model at a provider, asked for each answer through ``ask``.

    ``timeout`` is in seconds for one attempt; a fault that may pass is raised after ``retries`` further
    attempts. Between attempts it waits a random part of ``backoff`` * 2^n seconds, and at least what the
    provider asks for. With ``limiters``, calls go through the limiter of the provider.
    """

    name: str
    _: KW_ONLY
    temperature: float | None = None
    model_args: dict[str, Any] = field(default_factory=dict)
    timeout: float = 600.0
    retries: int = 3
    backoff: float = 1.0
    limiters: Limiters | None = None
    note: str | None = field(default=None, init=False)
    """A message about the set-up, for people."""

    def __post_init__(self) -> None:
        self._secrets = keep_secrets(secrets_in(self.model_args))

    def identity(self) -> dict[str, Any]:
        """Everything that determines its answers besides the conversation, with secrets in ``model_args``."""
        name, provider = self._resolved()
        return {
            "model": name,
            "provider": provider,
            "server": server_variables(provider),
            "temperature": self.temperature,
            "model_args": self.model_args,
        }

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        parallel_tool_calls: bool = True,
        caller: Caller | None = None,
    ) -> Completion:
        """Ask the model; raises ``ModelError`` or one of its subclasses if it does not answer."""
        options: dict[str, Any] = {}
        if seed is not None and "seed" not in self.model_args:
            options["seed"] = seed
        if tools:
            options["tools"] = tools
            if not parallel_tool_calls:
                options["parallel_tool_calls"] = False
        caller = caller or Caller()
        request = self._request(messages, options, caller.sent)
        limiter = None if self.limiters is None else self.limiters.of(request.provider, request.address)
        return await ask(
            partial(self._attempt, request, limiter),
            Call(request.size, caller),
            retries=self.retries,
            backoff=self.backoff,
            limiter=limiter,
        )

    def for_rollout(self, caller: Caller) -> Model:
        """The model as one rollout asks it."""
        bound: Any = SimpleNamespace(name=self.name, complete=partial(self.complete, caller=caller))
        return bound  # type: ignore[no-any-return]  # it has what ``Model`` asks for

    async def close(self) -> None:
        """Close the connections."""
        raise NotImplementedError

    async def _attempt(self, request: Request, limiter: Limiter | None) -> Completion | ModelError:
        try:
            return await self._send(request, limiter)
        except Exception as error:  # noqa: BLE001 - a malformed answer makes its reader raise anything
            if limiter is not None:
                limiter.read_headers(headers_of(error))
            fault = model_error(error, request, timeout=self.timeout, secrets=self._secrets)
            fault.__cause__ = error
            if limiter is not None and not limiter.proven and cannot_be_read(fault):
                fault.retryable = False  # the set-up may be at fault: nothing to wait for as for an outage
            return fault

    def _resolved(self) -> tuple[str, str]:
        """The model's name there, and the provider."""
        raise NotImplementedError

    def _request(self, messages: list[Message], options: dict[str, Any], sent: dict[Any, Any]) -> Request:
        """The request; ``sent`` is kept from one request of a caller to the next."""
        raise NotImplementedError

    async def _send(self, request: Request, limiter: Limiter | None) -> Completion:
        """Make one attempt, and show the limiter the headers of an answer; raises anything."""
        raise NotImplementedError


def model_of_rollout(model: Model, caller: Caller) -> Model:
    """The model as ``caller`` asks it; the model itself if it makes no difference between rollouts."""
    bind = getattr(model, "for_rollout", None)
    return model if bind is None else bind(caller)


def call_timeouts(models: Mapping[Role, Any], seconds: float) -> dict[Role, float]:
    """The time limit of a call, by role, for custom models that have none themselves."""
    own = [role for role, model in models.items() if not isinstance(model, RemoteModel)]
    return {} if math.isinf(seconds) else dict.fromkeys(own, seconds)
