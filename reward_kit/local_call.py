"""Calling a reward function in this process: the names its arguments have, the forms its result may take."""

from __future__ import annotations

import importlib
import inspect
import warnings
from typing import TYPE_CHECKING, Any

from reward_kit.models import EvaluateResult, MetricResult, RewardOutput

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType


def imported_function(
    path: str, import_module: Callable[[str], ModuleType] = importlib.import_module
) -> Callable[..., Any]:
    """The function that ``package.module:function`` or ``package.module.function`` names.

    Raises ``ValueError`` for a path of another form, ``ImportError`` where it leads nowhere.
    """
    module_name, separator, name = path.partition(":") if ":" in path else path.rpartition(".")
    if not separator or not module_name:
        raise ValueError(
            f"Invalid func_path format: {path}, "
            "expected 'module.path:function_name' or 'module.path.function_name'"
        )
    try:
        function: Callable[..., Any] = getattr(import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"Failed to load function from path {path}: {error}") from error
    return function


def call_arguments(
    function: Callable[..., Any], messages: list[Any], ground_truth: Any, others: Mapping[str, Any]
) -> dict[str, Any]:
    """The keyword arguments for ``function``.

    The ground truth (``messages[:-1]`` where there is none) is passed under each name that the function has
    for it: ``ground_truth``, and ``original_messages``, the older one, which callers may use as well.
    """
    if ground_truth is None:
        ground_truth = others.get("original_messages")
    if ground_truth is None:
        ground_truth = messages[:-1]
    truths = {
        "ground_truth": ground_truth,
        "original_messages": others.get("original_messages", ground_truth),
    }
    parameters = inspect.signature(function).parameters
    names = {name for name in truths if name in parameters}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        names |= {"ground_truth"} | (truths.keys() & others.keys())
    return {
        "messages": messages,
        **{name: value for name, value in others.items() if name not in truths},
        **{name: truths[name] for name in names},
    }


def as_result(result: Any) -> EvaluateResult:
    """What a reward function returned, as an ``EvaluateResult``.

    Besides results, ``(score, {metric: score})`` and a dict with ``score`` are taken, with a
    ``DeprecationWarning``. Raises ``TypeError`` for anything else.
    """
    if isinstance(result, EvaluateResult):
        return result
    if isinstance(result, RewardOutput):
        return result.to_evaluate_result()
    if isinstance(result, tuple) and len(result) == 2:
        result = {"score": result[0], "metrics": result[1]}
    elif not isinstance(result, dict) or "score" not in result:
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"Invalid return type from reward function: {type(result)}. Expected EvaluateResult.")
    warnings.warn(
        "A reward function should return an EvaluateResult or a RewardOutput; a tuple or dict is deprecated.",
        DeprecationWarning,
        stacklevel=4,
    )
    metrics = {name: _as_metric(name, value) for name, value in (result.get("metrics") or {}).items()}
    return EvaluateResult.model_validate({**result, "metrics": metrics})


def _as_metric(name: str, value: Any) -> Any:
    if isinstance(value, MetricResult):
        return value
    fields = value if isinstance(value, dict) else {"score": value}
    return {"reason": f"{name} score", **fields}
