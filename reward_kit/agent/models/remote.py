"""Which client asks a model over HTTP: the direct path, or LiteLLM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reward_kit.agent.models.limiter import Limiters
    from reward_kit.agent.models.litellm import LiteLLMModel
    from reward_kit.agent.models.openai_http.model import OpenAIModel


def remote_model(
    name: str,
    provider: str | None = None,
    *,
    client: str,
    model_args: dict[str, Any] | None = None,
    limiters: Limiters | None = None,
    **more: Any,
) -> OpenAIModel | LiteLLMModel:
    """A model that is asked over HTTP: directly where that applies and ``client`` allows it, else by LiteLLM.

    ``more`` are further arguments of both clients. Raises ``ModelSetupError`` for one that cannot be called.
    """
    if limiters is not None:
        limiters.used = True
    more.update(model_args=model_args, limiters=limiters)
    if client == "direct":
        from reward_kit.agent.models.openai_http.endpoint import find_endpoint

        endpoint = find_endpoint(name, provider, model_args or {})
        if endpoint is not None:
            from reward_kit.agent.models.openai_http.model import OpenAIModel

            return OpenAIModel(name, endpoint, **more)
    from reward_kit.agent.models.litellm import LiteLLMModel, check_model

    check_model(name, provider, model_args=model_args)
    return LiteLLMModel(name, provider=provider, **more)
