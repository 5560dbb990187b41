"""``@reward_function``: validated arguments and results for functions that score messages."""

from __future__ import annotations

import functools
import inspect
import itertools
import types
import typing
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, Union, overload

from pydantic import Strict, TypeAdapter, ValidationError

from reward_kit.lazy_names import lazy_requests
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
        signature = inspect.signature(function)
        if not any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values()):
            remedy = "Please add '**kwargs' to the function signature."
            raise ValueError(f"Function '{name}' must accept **kwargs parameter. {remedy}")
        coerced = _message_arguments(signature, function, mode)
        db = signature.parameters.get("db")
        needs_db = db is not None and db.default is db.empty
        provided = {kind: list(wrappers) for kind, wrappers in (resources or {}).items()}
        for service in itertools.chain.from_iterable(provided.values()):
            service.setup()

        def bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            if provided:
                clients = {kind: [one.get_client() for one in held] for kind, held in provided.items()}
                kwargs["resources"] = clients
            given = signature.bind_partial(*args, **kwargs) if args else None
            arguments = kwargs if given is None else given.arguments
            if needs_db and "db" not in arguments:
                bundle = function.__module__.partition(".")[0]
                remedy = f"TaskBundle.load({bundle!r}).episode(0).finish_sync()"
                fault = (
                    f"{name}() needs db, the data that it judges. An episode has them, and asks the reward:"
                )
                raise TypeError(f"{fault} {remedy}")
            for argument, to_messages in coerced.items():
                if argument in arguments:
                    arguments[argument] = to_messages(arguments[argument])
            return (args, kwargs) if given is None else (given.args, given.kwargs)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = bound(args, kwargs)
                return await _checked_later(function(*args, **kwargs), mode, name)

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                args, kwargs = bound(args, kwargs)
                result = function(*args, **kwargs)  # may have an async function inside
                return (_checked_later if inspect.isawaitable(result) else _checked)(result, mode, name)

        about = {"id": id, "requirements": requirements, "mode": mode, "resources": resources}
        wrapper.__dict__.update({f"_reward_function_{name}": value for name, value in about.items()})
        return wrapper

    return decorate if _func is None else decorate(_func)


# users' tests replace it for ``RewardFunction``
reward_function.requests = lazy_requests  # type: ignore[attr-defined]


async def _checked_later(result: Awaitable[Any], mode: str, name: str) -> Any:
    return _checked(await result, mode, name)


def _checked(result: Any, mode: str, name: str) -> Any:
    """Check what a function returned, and make dicts an ``EvaluateResult``; lists are for batch mode."""
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
        fault = f"Return value from function '{name}' failed Pydantic validation for mode '{mode}'"
        raise ValueError(f"{fault}:\n{error}") from None


def _message_arguments(
    signature: inspect.Signature, function: Callable[..., Any], mode: str
) -> dict[str, Callable[[Any], Any]]:
    """The parameters annotated as messages, each with a function that converts its value.

    These are ``messages`` (``rollouts_messages``, a list of lists, in batch mode) and ``ground_truth``. Any
    other annotation than a list of ``Message``, optional or not, leaves the argument as the caller gave it.
    """
    depths = {"rollouts_messages": 2} if mode == "batch" else {"messages": 1}
    depths["ground_truth"] = 1
    found: dict[str, Callable[[Any], Any]] = {}
    for name in filter(signature.parameters.__contains__, depths):
        hint = _resolved(signature.parameters[name].annotation, function)
        inner = _without_none(hint)
        if _is_messages(inner, depths[name]):
            may_be_none = name == "ground_truth" or inner is not hint
            found[name] = functools.partial(_to_messages, name, _adapter(depths[name]), may_be_none)
    return found


def _to_messages(name: str, adapter: TypeAdapter[Any], may_be_none: bool, value: Any) -> Any:
    if value is None and may_be_none:
        return None
    try:
        return adapter.validate_python(value)
    except ValidationError as error:
        wanted = " for List[Message]" if name == "ground_truth" else ""
        raise ValueError(f"Input '{name}' failed Pydantic validation{wanted}: {error}") from None


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
