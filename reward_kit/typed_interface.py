"""``@reward_function``: validated arguments and results for functions that score messages."""

from __future__ import annotations

import functools
import inspect
import itertools
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, overload

from pydantic import Strict, TypeAdapter, ValidationError

from reward_kit.models import EvaluateResult, Message, RewardOutput

if TYPE_CHECKING:
    from reward_kit.compat.resources import ResourceWrapper

EvaluationMode = Literal["pointwise", "batch"]
"""``pointwise``: one rollout in, one result out; ``batch``: a list of rollouts in, a list of results out."""

Function = TypeVar("Function", bound=Callable[..., Any])

_results = TypeAdapter(list[EvaluateResult])


@overload
def reward_function(_func: Function) -> Function: ...


@overload
def reward_function(
    _func: None = None,
    *,
    mode: EvaluationMode = "pointwise",
    id: str | None = None,
    requirements: list[str] | None = None,
    resources: dict[str, list[ResourceWrapper]] | None = None,
) -> Callable[[Function], Function]: ...


def reward_function(
    _func: Callable[..., Any] | None = None,
    *,
    mode: EvaluationMode = "pointwise",
    id: str | None = None,  # noqa: A002 - the published name of the argument
    requirements: list[str] | None = None,
    resources: dict[str, list[ResourceWrapper]] | None = None,
) -> Callable[..., Any]:
    """Make a ``def`` or ``async def`` function a reward function.

    Arguments that are annotated ``list[Message]`` become ``Message`` objects: ``messages`` (in batch mode
    ``rollouts_messages: list[list[Message]]``) and ``ground_truth``. An ``EvaluateResult`` or a
    ``RewardOutput`` that the function returns is passed on unchanged; a dict becomes an ``EvaluateResult``.

    Raises ``ValueError`` at decoration if the function does not take ``**kwargs``, and at the call for
    invalid messages or results. Exceptions of the function propagate unchanged.

    ``id`` and ``requirements`` are kept on the function for tools that deploy it. Each of the ``resources``
    (such as ``{"llms": [create_llm_resource(llm)]}``) is set up once, at decoration; the function gets their
    clients as ``resources={"llms": [client]}``.

        @reward_function
        def exact(messages, ground_truth=None, **kwargs):
            return {"score": float(messages[-1]["content"] == ground_truth), "reason": "compared"}
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = getattr(function, "__name__", type(function).__name__)
        parameters = inspect.signature(function).parameters.values()
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            raise ValueError(
                f"Function '{name}' must accept **kwargs parameter. "
                "Please add '**kwargs' to the function signature."
            )
        coerced = _message_arguments(function, mode)
        provided = {kind: list(wrappers) for kind, wrappers in (resources or {}).items()}
        for service in itertools.chain.from_iterable(provided.values()):
            service.setup()

        def prepare(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            for argument in coerced:
                args = argument.coerce(args, kwargs)
            if provided:
                kwargs["resources"] = {
                    kind: [wrapper.get_client() for wrapper in wrappers]
                    for kind, wrappers in provided.items()
                }
            return args

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                args = prepare(args, kwargs)
                return _checked(await function(*args, **kwargs), mode, name)

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                args = prepare(args, kwargs)
                return _checked(function(*args, **kwargs), mode, name)

        wrapper.__dict__.update(
            _reward_function_id=id,
            _reward_function_requirements=requirements,
            _reward_function_mode=mode,
            _reward_function_resources=resources,
        )
        return wrapper

    return decorate if _func is None else decorate(_func)


def _checked(result: Any, mode: str, name: str) -> Any:
    """The result as it is if it is one, else as an ``EvaluateResult``; a list of them in batch mode."""
    if mode not in ("pointwise", "batch"):
        raise ValueError(f"Internal error: Invalid mode '{mode}' in wrapper.")
    results = [result] if mode == "pointwise" else result
    if isinstance(results, list):
        if all(isinstance(one, EvaluateResult | RewardOutput) for one in results):
            return result
        results = [one.to_evaluate_result() if isinstance(one, RewardOutput) else one for one in results]
    try:
        if mode == "batch":
            return _results.validate_python(results)
        return EvaluateResult.model_validate(result)
    except ValidationError as error:
        raise ValueError(
            f"Return value from function '{name}' failed Pydantic validation for mode '{mode}':\n{error}"
        ) from None


@dataclass(frozen=True, slots=True)
class _MessageArgument:
    """A parameter annotated as messages; ``fault`` begins the message of a validation error."""

    name: str
    position: int
    adapter: TypeAdapter[Any]
    fault: str
    may_be_none: bool

    def coerce(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return ``args`` with this argument as messages; a keyword argument is replaced in ``kwargs``."""
        if self.name in kwargs:
            kwargs[self.name] = self._messages(kwargs[self.name])
        elif self.position < len(args):
            value = self._messages(args[self.position])
            return (*args[: self.position], value, *args[self.position + 1 :])
        return args

    def _messages(self, value: Any) -> Any:
        if value is None and self.may_be_none:
            return None
        try:
            return self.adapter.validate_python(value)
        except ValidationError as error:
            raise ValueError(f"{self.fault}: {error}") from None


def _message_arguments(function: Callable[..., Any], mode: str) -> list[_MessageArgument]:
    """Find the parameters of ``function`` that are annotated as messages.

    These are ``messages`` (``rollouts_messages``, a list of lists, in batch mode) and ``ground_truth``. Any
    other annotation than a list of ``Message``, optional or not, leaves the argument as the caller gave it.
    """
    depths = {"rollouts_messages" if mode == "batch" else "messages": 2 if mode == "batch" else 1}
    depths["ground_truth"] = 1
    found = []
    for position, parameter in enumerate(inspect.signature(function).parameters.values()):
        name, depth = parameter.name, depths.get(parameter.name)
        hint = None if depth is None else _resolved(parameter.annotation, function)
        inner = _without_none(hint)
        if depth is None or not _is_messages(inner, depth):
            continue
        is_truth = name == "ground_truth"
        fault = f"Input '{name}' failed Pydantic validation{' for List[Message]' if is_truth else ''}"
        may_be_none = is_truth or inner is not hint
        found.append(_MessageArgument(name, position, _adapter(depth), fault, may_be_none))
    return found


@functools.lru_cache(maxsize=2)
def _adapter(depth: int) -> TypeAdapter[Any]:
    one_conversation = Annotated[list[Message], Strict()]
    return TypeAdapter(one_conversation if depth == 1 else Annotated[list[one_conversation], Strict()])


def _resolved(annotation: Any, function: Callable[..., Any]) -> Any:
    """Resolve an annotation to a type; text with unknown names stays text.

    Common names are known even if the module imports them for type checkers only.
    """
    usual_names = {**vars(typing), "Message": Message}
    module_names = getattr(inspect.unwrap(function), "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, {**usual_names, **module_names})["it"]
    except (NameError, TypeError, SyntaxError, AttributeError):
        return annotation


def _without_none(hint: Any) -> Any:
    """Return ``X`` for ``Optional[X]``, anything else unchanged."""
    if typing.get_origin(hint) not in (Union, types.UnionType):
        return hint
    members = [member for member in typing.get_args(hint) if member is not type(None)]
    return members[0] if len(members) == 1 else hint


def _is_messages(hint: Any, depth: int) -> bool:
    if depth == 0:
        return hint is Message
    arguments = typing.get_args(hint)
    return typing.get_origin(hint) is list and len(arguments) == 1 and _is_messages(arguments[0], depth - 1)
