"""``@reward_function``: checked arguments and a checked result for a function that scores messages."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from pydantic import TypeAdapter, ValidationError

from reward_kit.message_arguments import message_arguments
from reward_kit.models import EvaluateResult, RewardOutput

if TYPE_CHECKING:
    from reward_kit.resources import ResourceWrapper

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
    """Make a function a reward function; with or without arguments, on ``def`` and ``async def``.

    Arguments that are annotated ``list[Message]`` become ``Message`` objects: ``messages`` (in batch mode
    ``rollouts_messages: list[list[Message]]``) and ``ground_truth``. An ``EvaluateResult`` or a
    ``RewardOutput`` that the function returns is handed on as it is; a dict becomes an ``EvaluateResult``.

    The function must take ``**kwargs``, else ``ValueError`` at decoration. At the call, ``ValueError`` for
    arguments that are no messages and for a result that is none; what the function raises is not touched.

    ``id`` and ``requirements`` are kept on the function for tools that deploy it. Each of the ``resources``
    (such as ``{"llms": [create_llm_resource(llm)]}``) is set up once, at decoration; the function gets their
    clients as ``resources={"llms": [client]}``.

        @reward_function
        def exact(messages, ground_truth=None, **kwargs):
            return {"score": float(messages[-1]["content"] == ground_truth), "reason": "compared"}
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = getattr(function, "__name__", type(function).__name__)
        _require_var_keyword(function, name)
        coerced = message_arguments(function, mode)
        provided = _set_up(resources)

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


def _require_var_keyword(function: Callable[..., Any], name: str) -> None:
    parameters = inspect.signature(function).parameters.values()
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        raise ValueError(
            f"Function '{name}' must accept **kwargs parameter. "
            "Please add '**kwargs' to the function signature."
        )


def _set_up(resources: dict[str, list[ResourceWrapper]] | None) -> dict[str, list[ResourceWrapper]]:
    provided = {kind: list(wrappers) for kind, wrappers in (resources or {}).items()}
    for wrappers in provided.values():
        for wrapper in wrappers:
            wrapper.setup()
    return provided


def _checked(result: Any, mode: str, name: str) -> Any:
    try:
        if mode == "pointwise":
            if isinstance(result, EvaluateResult | RewardOutput):
                return result
            return EvaluateResult.model_validate(result)
        if mode == "batch":
            return _checked_batch(result)
    except ValidationError as error:
        raise ValueError(
            f"Return value from function '{name}' failed Pydantic validation for mode '{mode}':\n{error}"
        ) from None
    raise ValueError(f"Internal error: Invalid mode '{mode}' in wrapper.")


def _checked_batch(results: Any) -> Any:
    if not isinstance(results, list):
        return _results.validate_python(results)
    if all(isinstance(result, EvaluateResult | RewardOutput) for result in results):
        return results
    return _results.validate_python(
        [result.to_evaluate_result() if isinstance(result, RewardOutput) else result for result in results]
    )
