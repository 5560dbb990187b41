"""Custom models, which answer in this process: objects, or plain functions."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.deadline import OutOfTimeError, TimeLimit, is_cancelled
from reward_kit.agent.base.encoding import copied
from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.types import MOST_COUNTED, Completion, Usage, check_number, counted
from reward_kit.agent.base.worker_thread import in_thread
from reward_kit.agent.models.answer_parts import are_tokens
from reward_kit.errors import ModelError, ModelSetupError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.base.types import Message, Model, Role

BROKEN = 3
"""Equal exceptions in succession after which a model that has answered nothing counts as broken."""
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
        is_named = isinstance(getattr(given, "name", None), str)
        if is_named and callable(getattr(given, "complete", None)) and not isinstance(given, type):
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


class FunctionModel:
    """Asks ``function(messages)`` for each answer, with those of ``OPTIONS`` that it takes.

    A function that is not ``async`` runs in a thread, so that others are answered meanwhile. It returns the
    assistant message (a dict, or an object with ``model_dump()``, such as OpenAI's client gives), its text
    alone, or a ``Completion``, which can say what the answer used; without that it is unpriced. ``TypeError``
    for anything else, and for tool calls that are not of OpenAI's form.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self._function = function
        try:
            parameters = inspect.signature(function).parameters
        except (TypeError, ValueError):  # it is not written in Python
            parameters = MappingProxyType({})
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        self._options = [name for name in OPTIONS if takes_all or name in parameters]

    async def complete(
        self,
        messages: list[Message],
        *,
        tools: list[dict[str, Any]] | None = None,
        seed: int | None = None,
        parallel_tool_calls: bool = True,
    ) -> Completion:
        """Return the function's answer to ``messages``."""
        options = {"tools": tools, "seed": seed, "parallel_tool_calls": parallel_tool_calls}
        given = {name: copied(options[name]) for name in self._options}  # which the function may change
        call = partial(self._function, copied(messages), **given)
        answer = call() if inspect.iscoroutinefunction(self._function) else await in_thread(call)
        return _completion(await answer if inspect.isawaitable(answer) else answer)


@dataclass(slots=True)
class FirstAnswers:
    """Finds custom models that raise the same error at every call, as they would in all other rollouts.

    ``answered`` are the roles whose model has answered.
    """

    answered: set[Role] = field(default_factory=set)
    faults: Counter[tuple[Role, str]] = field(default_factory=Counter)

    def broke(self, role: Role, fault: str) -> bool:
        """Note that a model has raised ``fault``; True if it has answered nothing and always raised this."""
        if role in self.answered:
            return False
        self.faults[role, fault] += 1
        return self.faults[role, fault] >= BROKEN


async def answer_of(
    model: Model,
    messages: list[Message],
    options: Mapping[str, Any],
    *,
    role: Role,
    seconds: float | None,
    first: FirstAnswers,
    before: Usage | None,
) -> Completion:
    """The answer of a model, which may be a custom one; raises ``ModelError`` for any failure.

    Its usage is a copy that spoils no sum with that of ``before``. ``seconds`` is its time limit. A function
    that runs in a thread continues there, and nothing waits for it.
    """
    try:
        with TimeLimit(seconds):
            answer = await model.complete(messages, **options)
        _check_answer(answer)
        answer.usage = counted(answer.usage, before)
    except OutOfTimeError as error:
        fault = f"no answer within {seconds:g} s"
        place = f"model {model.name}"
        raise ModelError(fault, place=place, retryable=True, no_answer="time") from error
    except ModelError:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        place = f"model {model.name}"
        by_chance = isinstance(error, asyncio.CancelledError)  # an engine that has dropped the request
        if by_chance and is_cancelled():
            raise
        fault = f"raised {fault_line(error)}"
        if not by_chance and first.broke(role, fault):
            remedy = "It has answered no call yet, and raised this each time."
            raise ModelSetupError(fault, place=place, remedy=remedy) from error
        raise ModelError(fault, place=place) from error
    first.answered.add(role)
    return answer


def _check_answer(answer: Any) -> None:
    if not isinstance(answer, Completion):
        raise TypeError(f"complete() gave a {type(answer).__name__}, not a Completion")
    if not isinstance(answer.message, dict) or not isinstance(answer.usage, Usage):
        raise TypeError("complete() gave a Completion whose message is no dict, or whose usage no Usage")
    if not answer.seconds.__class__ is answer.waited.__class__ is float or not (
        0.0 <= answer.seconds <= MOST_COUNTED and 0.0 <= answer.waited <= MOST_COUNTED
    ):
        check_number("seconds", answer.seconds)
        check_number("waited", answer.waited)
    if answer.tokens is not None and not are_tokens(answer.tokens):
        raise TypeError("complete() gave tokens that are no Tokens of lists of whole and finite numbers")


def _completion(answer: Any) -> Completion:
    if isinstance(answer, Completion):
        return answer
    if isinstance(answer, str):
        answer = {"content": answer}
    elif hasattr(answer, "model_dump"):
        answer = answer.model_dump(exclude_none=True)
    if not isinstance(answer, Mapping):
        raise TypeError(f"gave a {type(answer).__name__}, not a message, its text or a Completion")
    if "choices" in answer or "message" in answer:
        raise TypeError("gave a whole answer: return the message in it, such as answer.choices[0].message")
    message = {"role": "assistant", "content": None, **answer}
    calls = message.get("tool_calls") or ()
    for place, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise TypeError(
                f'gave tool_calls[{place}] that is not of the form {{"id": ..., "type": "function", '
                '"function": {"name": ..., "arguments": ...}}'
            )
    return Completion(message, finish_reason="tool_calls" if calls else "stop")
