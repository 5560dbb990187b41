"""Model calls: the rollout that makes one, and the retry loop around its attempts.

A model with a method ``for_rollout(caller)`` is asked through its result, for each attempt at a rollout.
"""

from __future__ import annotations

import asyncio
import math
import re
from contextlib import AbstractContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from reward_kit.agent.base.network import backoff as seconds_until_next
from reward_kit.agent.base.redaction import keep_secrets, secrets_in
from reward_kit.agent.models.errors import headers_of, model_error
from reward_kit.agent.models.providers import server_variables
from reward_kit.errors import ModelError, ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping

    from reward_kit.agent.base.deadline import Deadline
    from reward_kit.agent.base.types import Completion, Message, Model, Role
    from reward_kit.agent.models.limiter import Limiter, Limiters

    Attempt = Callable[[], Awaitable[Completion | ModelError]]

_SEED = re.compile(r"\bseed\b", re.IGNORECASE)


@dataclass(slots=True)
class Caller:
    """One attempt at a rollout.

    ``conversation`` is the same in all attempts. Callers of the same ``task`` may share a fault that makes
    their calls fail. ``index`` and ``attempt`` are numbers from 0. Playing the rollout sets ``clock``.
    """

    conversation: Hashable = field(default_factory=object)
    task: Hashable = field(default_factory=object)
    index: int = 0
    attempt: int = 0
    clock: Deadline | None = None


@dataclass(slots=True, eq=False)
class Call:
    """A model call with all its attempts.

    ``size`` is the number of characters of its request, ``waited`` the seconds for which the limiter held it
    back, ``not_before`` the earliest time of its next attempt, ``sent`` the time of the last one. The limiter
    keeps the other fields.
    """

    size: int = 0
    caller: Caller = field(default_factory=Caller)
    waited: float = 0.0
    not_before: float = 0.0
    sent: float = 0.0
    generation: int = 0
    failures: int = 0
    failing_since: float = 0.0
    answers_before: int = 0
    faults_before: int = 0
    reserved: int = 0
    is_sent: bool = False

    def unclocked(self) -> AbstractContextManager[None]:
        """Pause the rollout's clock in a block."""
        return nullcontext() if self.caller.clock is None else self.caller.clock.paused()


async def ask(
    attempt: Attempt,
    *,
    retries: int,
    backoff: float,
    limiter: Limiter | None = None,
    size: int = 0,
    caller: Caller | None = None,
) -> Completion:
    """The answer of the first successful attempt, with the seconds of all; raises ``ModelError``.

    An attempt returns its error, because this loop decides if it is raised: one that may pass is raised after
    ``retries`` further attempts. Each attempt goes through the ``limiter``, which knows how other calls fare:
    one that failed for a limit or an outage is no retry (unless ``retries`` is 0). As long as the limiter has
    seen no answer, a fault that cannot pass is a ``ModelSetupError``, and so is an answer that cannot be read
    after ``retries`` further attempts. ``size`` is the number of characters of the request.
    """
    call = Call(size, caller or Caller())
    loop = asyncio.get_running_loop()
    began = loop.time()
    made = 0
    while True:
        if limiter is None:
            answer, excused = await attempt(), False
        else:
            answer, excused = await limiter.attempt(call, attempt)
        if not isinstance(answer, ModelError):
            break
        is_first = limiter is not None and not limiter.proven
        is_unread = is_first and _cannot_be_read(answer)
        if not (answer.retryable or is_unread) or (made >= retries and not (excused and retries)):
            if not is_first or type(answer) is not ModelError or answer.retryable:
                raise answer
            raise ModelSetupError(
                answer.fault, place=answer.place, remedy=_first_remedy(answer), status=answer.status
            ) from answer
        if not excused:
            made += 1
            asked = (answer.retry_after or 0.0) if limiter is None else 0.0
            await asyncio.sleep(seconds_until_next(made, first=backoff, jitter=1.0, asked=asked))
    answer.waited = call.waited
    answer.seconds = loop.time() - began - call.waited
    return answer


def _cannot_be_read(fault: ModelError) -> bool:
    return type(fault) is ModelError and fault.status is None and fault.no_answer is None


def _first_remedy(fault: ModelError) -> str:
    if _SEED.search(fault.fault) and fault.status is not None:
        return "Send no seed: --model-arg seed=null, or --user-model-arg seed=null for the simulated user."
    subject = "the server's address" if fault.status is None else "--model-arg and the model's documentation"
    return f"No call has been answered yet: check {subject}."


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
        request = self._request(messages, options)
        limiter = None if self.limiters is None else self.limiters.of(request.provider, request.address)
        return await ask(
            partial(self._attempt, request, limiter),
            retries=self.retries,
            backoff=self.backoff,
            limiter=limiter,
            size=request.size,
            caller=caller,
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
            if limiter is not None and not limiter.proven and _cannot_be_read(fault):
                fault.retryable = False  # the set-up may be at fault: nothing to wait for as for an outage
            return fault

    def _resolved(self) -> tuple[str, str]:
        """The model's name there, and the provider."""
        raise NotImplementedError

    def _request(self, messages: list[Message], options: dict[str, Any]) -> Request:
        raise NotImplementedError

    async def _send(self, request: Request, limiter: Limiter | None) -> Completion:
        """Make one attempt, and show the limiter the headers of an answer; raises anything."""
        raise NotImplementedError


def model_of_rollout(model: Model, caller: Caller) -> Model:
    """The model as ``caller`` asks it; the model itself if it makes no difference between rollouts."""
    bind = getattr(model, "for_rollout", None)
    return model if bind is None else bind(caller)


def call_timeouts(models: Mapping[Role, Any], seconds: float) -> dict[Role, float]:
    """The time limit of a call, by role, for those of a person's own models that keep none themselves."""
    own = [role for role, model in models.items() if not isinstance(model, RemoteModel)]
    return {} if math.isinf(seconds) else dict.fromkeys(own, seconds)
