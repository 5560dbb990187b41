"""``RewardFunction``: call a reward in this process or behind an HTTP endpoint.

``reward_kit.reward_function`` names two things: this module, and the decorator as the attribute of the
package. ``reward_kit/__init__.py`` therefore imports this module first, which must stay cheap: libraries are
imported when they are first used.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import warnings
from typing import TYPE_CHECKING, Any

from reward_kit.lazy_names import lazy_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from reward_kit.models import EvaluateResult
    from reward_kit.typed_interface import reward_function as reward_function

__all__ = ["RewardFunction", "reward_function"]

logger = logging.getLogger(__name__)

CONNECT_AND_READ_SECONDS = (10, 600)
"""Time limits of a remote reward, in seconds: to connect, and to answer."""


requests: Any = lazy_requests
"""Users' tests replace it: here, or as an attribute of the decorator, which has the name of this module."""


class RewardFunction:
    """A reward called with messages, locally or remotely.

    ``local`` calls ``func``, or what ``func_path`` names (``package.module:function`` or
    ``package.module.function``). ``remote`` posts to ``endpoint``, or to the Fireworks reward called
    ``name``. ``fireworks_hosted`` posts to the reward of the model ``model_id``. All other keyword
    arguments go to each call.

    Raises ``ValueError`` if the mode is unknown or lacks its argument, ``ImportError`` if ``func_path``
    cannot be imported.
    """

    def __init__(
        self,
        func: Callable[..., Any] | None = None,
        func_path: str | None = None,
        mode: str = "local",
        endpoint: str | None = None,
        name: str | None = None,
        model_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.func, self.func_path, self.mode, self.kwargs = func, func_path, mode, kwargs
        self.endpoint, self.name, self.model_id = endpoint, name, model_id
        if mode == "local":
            if func is None and func_path is None:
                raise ValueError("Either 'func' or 'func_path' must be provided for local mode")
            self.func = imported_function(str(func_path)) if func is None else func
        elif mode == "remote":
            if endpoint is None and name is None:
                raise ValueError("Either 'endpoint' or 'name' must be provided for remote mode")
            self.endpoint = endpoint or f"https://api.fireworks.ai/v1/reward/{name}"
        elif mode == "fireworks_hosted":
            if model_id is None:
                raise ValueError("'model_id' must be provided for fireworks_hosted mode")
            self.endpoint = f"https://api.fireworks.ai/v1/models/{model_id}/reward"
        else:
            raise ValueError(f"Invalid mode: {mode}")

    def __call__(self, messages: list[Any], ground_truth: Any = None, **kwargs: Any) -> EvaluateResult:
        """Score ``messages``.

        ``ground_truth`` defaults to ``messages[:-1]``; ``original_messages=`` is its older name. Exceptions
        of a local function propagate; a remote reward raises ``requests.HTTPError`` for an error status.
        """
        others = {**self.kwargs, **kwargs}
        if self.mode != "local":
            return self._call_remote(messages, ground_truth, others)
        assert self.func is not None
        try:
            result = self.func(**call_arguments(self.func, messages, ground_truth, others))
        except Exception:
            logger.exception("The reward function raised")
            raise
        return as_result(result)

    def get_trl_adapter(self) -> Callable[..., list[float]]:
        """Return this reward in TRL's form, see ``reward_kit.integrations.trl.conversation_adapter``."""
        trl = importlib.import_module("reward_kit.compat.integrations.trl")
        adapter: Callable[..., list[float]] = trl.conversation_adapter(self)
        return adapter

    def _call_remote(self, messages: list[Any], ground_truth: Any, others: dict[str, Any]) -> EvaluateResult:
        from pydantic_core import to_jsonable_python

        from reward_kit.models import EvaluateResult
        from reward_kit.typed_interface import reward_function

        assert self.endpoint is not None
        if ground_truth is None:
            ground_truth = others.get("original_messages", messages[:-1])
        body = {"messages": messages, "ground_truth": ground_truth, **others}
        library = vars(reward_function)["requests"] if requests is lazy_requests else requests
        token = f"Bearer {os.environ.get('FIREWORKS_API_KEY', '')}"
        headers = {"Content-Type": "application/json", "Authorization": token}
        given = to_jsonable_python(body, exclude_none=True)
        response = library.post(self.endpoint, json=given, headers=headers, timeout=CONNECT_AND_READ_SECONDS)
        response.raise_for_status()
        return EvaluateResult.model_validate(response.json())


def imported_function(path: str) -> Callable[..., Any]:
    """Import the function at ``package.module:function`` or ``package.module.function``.

    Raises ``ValueError`` if the path has another form, ``ImportError`` if nothing is there.
    """
    module_name, separator, name = path.partition(":") if ":" in path else path.rpartition(".")
    if not separator or not module_name:
        wanted = "expected 'module.path:function_name' or 'module.path.function_name'"
        raise ValueError(f"Invalid func_path format: {path}, {wanted}")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"Failed to load function from path {path}: {error}") from error
    return function


def call_arguments(
    function: Callable[..., Any], messages: list[Any], ground_truth: Any, others: Mapping[str, Any]
) -> dict[str, Any]:
    """Build the keyword arguments for ``function``.

    The ground truth (default: ``messages[:-1]``) is passed under each name that the function accepts:
    ``ground_truth`` and the older ``original_messages``.
    """
    older = others.get("original_messages")
    if ground_truth is None:
        ground_truth = messages[:-1] if older is None else older
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


def awaited(result: Any) -> Any:
    """The result of a reward function; the coroutine of an ``async`` one runs in a thread of its own."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    if not inspect.iscoroutine(result):
        return result
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, result).result()


def as_result(result: Any) -> EvaluateResult:
    """Convert a reward function's return value to an ``EvaluateResult``.

    Also accepts ``(score, {metric: score})`` and a dict with ``score``, with a ``DeprecationWarning``.
    Raises ``TypeError`` for anything else.
    """
    from reward_kit.models import EvaluateResult, MetricResult, RewardOutput

    result = awaited(result)
    if isinstance(result, EvaluateResult):
        return result
    if isinstance(result, RewardOutput):
        return result.to_evaluate_result()
    if isinstance(result, tuple) and len(result) == 2:
        result = {"score": result[0], "metrics": result[1]}
    elif not isinstance(result, dict) or "score" not in result:
        raise TypeError(f"Invalid return type from reward function: {type(result)}. Expected EvaluateResult.")
    warnings.warn(
        "A reward function should return an EvaluateResult or a RewardOutput; a tuple or dict is deprecated.",
        DeprecationWarning,
        stacklevel=3,
    )
    metrics = dict(result.get("metrics") or {})
    for name, value in metrics.items():
        if not isinstance(value, MetricResult):
            fields = value if isinstance(value, dict) else {"score": value}
            metrics[name] = {"reason": f"{name} score", **fields}
    return EvaluateResult.model_validate({**result, "metrics": metrics})


def __getattr__(name: str) -> Any:
    if name == "reward_function":
        return importlib.import_module("reward_kit.typed_interface").reward_function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
