"""``RewardFunction``: one way to call a reward wherever it runs, here or behind an HTTP endpoint.

``import reward_kit.reward_function`` finds this module; the attribute ``reward_kit.reward_function`` is the
decorator.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import TYPE_CHECKING, Any

import requests

from reward_kit.local_call import as_result, call_arguments, imported_function
from reward_kit.models import EvaluateResult, Message
from reward_kit.typed_interface import reward_function

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RewardFunction", "reward_function"]

logger = logging.getLogger(__name__)

CONNECT_AND_READ_SECONDS = (10, 600)
"""How long a remote reward may take to accept a request, and to answer it."""


class RewardFunction:
    """A reward that is called with messages, whatever its ``mode``.

    ``local`` calls ``func``, or what ``func_path`` names (``package.module:function`` or
    ``package.module.function``). ``remote`` posts to ``endpoint``, or to the Fireworks reward called
    ``name``. ``fireworks_hosted`` posts to the reward of the model ``model_id``. All other keyword
    arguments go to each call.

    Raises ``ValueError`` where the mode is unknown or lacks its argument, ``ImportError`` where
    ``func_path`` leads nowhere.
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
        self.func = func
        self.func_path = func_path
        self.mode = mode
        self.endpoint = endpoint
        self.name = name
        self.model_id = model_id
        self.kwargs = kwargs
        if mode == "local":
            if func is None and func_path is None:
                raise ValueError("Either 'func' or 'func_path' must be provided for local mode")
            if func is None and func_path is not None:
                self.func = imported_function(func_path, importlib.import_module)
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
        """The result for ``messages``.

        ``ground_truth`` is ``messages[:-1]`` where it is not given; ``original_messages=`` is its older
        name. What a local function raises goes on to the caller; a remote one raises ``requests.HTTPError``
        for an error status.
        """
        others = {**self.kwargs, **kwargs}
        if self.mode == "local":
            return self._call_local(messages, ground_truth, others)
        return self._call_remote(messages, ground_truth, others)

    def get_trl_adapter(self) -> Callable[..., list[float]]:
        """This reward as TRL trainers call it: see ``reward_kit.integrations.trl.conversation_adapter``."""
        from reward_kit.integrations.trl import conversation_adapter

        return conversation_adapter(self)

    def _call_local(self, messages: list[Any], ground_truth: Any, others: dict[str, Any]) -> EvaluateResult:
        assert self.func is not None
        arguments = call_arguments(self.func, messages, ground_truth, others)
        try:
            result = self.func(**arguments)
        except Exception:
            logger.exception("The reward function raised")
            raise
        return as_result(result)

    def _call_remote(self, messages: list[Any], ground_truth: Any, others: dict[str, Any]) -> EvaluateResult:
        assert self.endpoint is not None
        if ground_truth is None:
            ground_truth = others.get("original_messages", messages[:-1])
        response = requests.post(
            self.endpoint,
            json=_as_json({"messages": messages, "ground_truth": ground_truth, **others}),
            headers={
                "Content-Type": "application/json",
                "Authorization": f"Bearer {os.environ.get('FIREWORKS_API_KEY', '')}",
            },
            timeout=CONNECT_AND_READ_SECONDS,
        )
        response.raise_for_status()
        return EvaluateResult.model_validate(response.json())


def _as_json(value: Any) -> Any:
    """Messages, and whatever else has ``model_dump``, as plain JSON types."""
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, Message):
        return value.model_dump(exclude_none=True)
    return value.model_dump() if hasattr(value, "model_dump") else value
