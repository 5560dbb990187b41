"""Models of a person's own that answer in this process: objects, or plain functions."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.types import Completion, Usage
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.errors import ModelError, UsageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reward_kit.agent.base.types import Message, Model, Role

OPTIONS = ("tools", "seed", "parallel_tool_calls")
"""What a function gets by these names, if it takes it, besides the messages."""


def checked_models(models: Mapping[Role, Any]) -> dict[Role, Model]:
    """Models by role, functions made into such; ``UsageError`` for what is none."""
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
                f"models[{role!r}] is no model",
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
    alone, or a ``Completion``, which can tell what the answer used. ``TypeError`` for anything else, and for
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
        """What the function makes of ``messages``."""
        options = {"tools": tools, "seed": seed, "parallel_tool_calls": parallel_tool_calls}
        call = partial(self._function, messages, **{name: options[name] for name in self._options})
        answer = call() if inspect.iscoroutinefunction(self._function) else await in_thread(call)
        return _completion(await answer if inspect.isawaitable(answer) else answer)


def call_timeouts(models: Mapping[Role, Any], seconds: float) -> dict[Role, CallTimeout]:
    """The time of a call, by role, for those of a person's own models that do not see to it themselves."""
    if not models:
        return {}
    from reward_kit.agent.models.litellm import LiteLLMModel
    from reward_kit.agent.models.openai_http.model import OpenAIModel

    return {
        role: CallTimeout(seconds)
        for role, model in models.items()
        if not isinstance(model, LiteLLMModel | OpenAIModel)
    }


class CallTimeout:
    """Ends calls that take longer than ``seconds``, all of those that run at the same time.

    They have the same time, so the first to be over is the one that began first: a single timer serves all,
    and a quick call costs next to nothing.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._running: dict[_Call, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def answer(self, call: Awaitable[Any], name: str) -> Any:
        """What ``call`` gives; ``ModelError`` where the model ``name`` has not answered in time.

        What runs in a thread goes on there, and nobody waits for it any more.
        """
        loop = asyncio.get_running_loop()
        present: Any = asyncio.current_task()
        entry = _Call(present, loop.time() + self.seconds)
        self._running[entry] = None
        if self._timer is None:
            self._start(loop, self.seconds)
        try:
            return await call
        except (Exception, asyncio.CancelledError) as error:
            if not entry.is_over or (isinstance(error, asyncio.CancelledError) and entry.is_cancelled_too()):
                raise
            raise ModelError(
                f"no answer within {self.seconds:g} s",
                place=f"model {name}",
                retryable=True,
                no_answer="time",
            ) from error
        finally:
            del self._running[entry]
            entry.leave()

    def _start(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        # in no rollout's context: the tasks of one are guarded against all others
        self._timer = loop.call_later(seconds, self._end_calls, loop, context=contextvars.Context())

    def _end_calls(self, loop: asyncio.AbstractEventLoop) -> None:
        """End the calls whose time is over, and wait for the next one."""
        self._timer = None
        for entry in list(self._running):
            left = entry.deadline - loop.time()
            if left > 0:
                self._start(loop, left)
                return
            entry.end()


class _Call:
    """A call of a model by ``task``; ``is_over`` when it was told to end for its time."""

    __slots__ = ("deadline", "is_over", "task")

    def __init__(self, task: Any, deadline: float) -> None:
        self.task = task
        self.deadline = deadline
        self.is_over = False

    def end(self) -> None:
        """Cancel what its task waits for; once, also if it does not heed that."""
        if not self.is_over:
            self.is_over = True
            self.task.cancel()

    def is_cancelled_too(self) -> bool:
        """Whether somebody else has cancelled the task as well (Python 3.10 does not know)."""
        return hasattr(self.task, "cancelling") and self.task.cancelling() > 1

    def leave(self) -> None:
        """The task goes on, as it was before it was told to end."""
        if self.is_over and hasattr(self.task, "uncancel"):
            self.task.uncancel()


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
