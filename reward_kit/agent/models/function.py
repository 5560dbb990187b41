"""A person's own models, which answer in this process: objects, or plain functions."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.base.types import Completion, Usage
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.agent.models.calls import RemoteModel
from reward_kit.errors import ModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reward_kit.agent.base.types import Message, Model, Role

T = TypeVar("T")

OPTIONS = ("tools", "seed", "parallel_tool_calls")
"""Names under which a function gets more than the messages, if it takes them."""


def checked_models(models: Mapping[Role, Any]) -> dict[Role, Model]:
    """Models by role, with functions wrapped; raises ``UsageError`` for anything else."""
    if not isinstance(models, Mapping):
        raise UsageError(
            f"models takes a dict, not {models!r}",
            remedy='Say whose model it is: models={"agent": model, "user": other}.',
        )
    found: dict[Role, Model] = {}
    for role, given in models.items():
        if role not in ("agent", "user"):
            raise UsageError(f"models: there is no role {role!r}", remedy="The roles are agent and user.")
        if _is_model(given):
            found[role] = given
        elif callable(given) and not isinstance(given, type):
            found[role] = FunctionModel(given)
        else:
            raise UsageError(
                f"models[{role!r}] is not a model",
                remedy="A model is a function of the messages, or an object with a text name and async def "
                "complete(messages, *, tools, seed, parallel_tool_calls), which gives a Completion.",
            )
    return found


def _is_model(given: Any) -> bool:
    if isinstance(given, type) or not isinstance(getattr(given, "name", None), str):
        return False
    return callable(getattr(given, "complete", None))


class FunctionModel:
    """Asks ``function(messages)`` for each answer, with those of ``OPTIONS`` that it takes.

    A function that is not ``async`` runs in a thread, so that others are answered meanwhile. It returns the
    assistant message (a dict, or an object with ``model_dump()``, such as OpenAI's client gives), its text
    alone, or a ``Completion``, which can say what the answer used. ``TypeError`` for anything else, and for
    tool calls that are not of OpenAI's form.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self._function = function
        self._options = _taken(function)

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        parallel_tool_calls: bool = True,
    ) -> Completion:
        """Return what the function makes of ``messages``."""
        options = {"tools": tools, "seed": seed, "parallel_tool_calls": parallel_tool_calls}
        call = partial(self._function, messages, **{name: options[name] for name in self._options})
        answer = call() if inspect.iscoroutinefunction(self._function) else await in_thread(call)
        return _completion(await answer if inspect.isawaitable(answer) else answer)


def call_timeouts(models: Mapping[Role, Any], seconds: float) -> dict[Role, float]:
    """The time limit of a call, by role, for those of a person's own models that keep none themselves."""
    return {role: seconds for role, model in models.items() if not isinstance(model, RemoteModel)}


async def answer_within(seconds: float, call: Awaitable[T], name: str) -> T:
    """Await ``call``; raises ``ModelError`` if the model ``name`` does not answer in time.

    A function that runs in a thread continues there, and nothing waits for it.
    """
    try:
        async with asyncio.timeout(None if math.isinf(seconds) else seconds) as limit:
            return await call
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise ModelError(
            f"no answer within {seconds:g} s", place=f"model {name}", retryable=True, no_answer="time"
        ) from error


def _taken(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # it is not written in Python
        return ()
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return OPTIONS
    return tuple(name for name in OPTIONS if name in parameters)


def _completion(answer: Any) -> Completion:
    if isinstance(answer, Completion):
        return answer
    if isinstance(answer, str):
        answer = {"content": answer}
    elif hasattr(answer, "model_dump"):
        answer = answer.model_dump(exclude_none=True)
    if not isinstance(answer, Mapping):
        raise TypeError(f"gave a {type(answer).__name__}, not a message, its text or a Completion")
    message = {"role": "assistant", "content": None, **answer}
    calls = message.get("tool_calls") or ()
    for place, call in enumerate(calls):
        _check_call(call, place)
    return Completion(message, Usage(calls=1), "tool_calls" if calls else "stop")


def _check_call(call: Any, place: int) -> None:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise TypeError(
            f'gave tool_calls[{place}] that is not of the form {{"id": ..., "type": "function", "function": '
            '{"name": ..., "arguments": ...}}'
        )
