"""The models that an evaluation's options name: each behind a local server or at a provider."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.redaction import REDACTED
from reward_kit.agent.models.litellm import remote_model
from reward_kit.agent.models.local.backends import check_tools
from reward_kit.agent.models.local.model import LocalModel
from reward_kit.agent.models.local.recognise import names_local_model
from reward_kit.agent.models.local.server import ModelServers
from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from reward_kit.agent.base.types import Model, Role
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.models.calls import Limiters


def find_models(
    config: EvaluationConfig, limiters: Limiters, *, agent: bool, user: bool
) -> dict[Role, Model]:
    """The models that agent and user ask, as far as they are wanted and named.

    Their calls go through ``limiters``, but for those of local servers.

    Raises ``ModelSetupError`` for one that cannot be called: no key, no such provider, a wrong address.
    """
    for flag, given in (("--model-arg", config.model_args), ("--user-model-arg", config.user_model_args)):
        hidden = [name for name, value in given.items() if REDACTED in json.dumps(value, default=str)]
        if hidden:
            raise ModelSetupError(
                f"the model argument {hidden[0]} is a secret, which is not stored with an evaluation",
                remedy=f"Give it again: {flag} {hidden[0]}=...",
            )
    common = {"client": config.client, "retries": config.retries, "timeout": config.call_timeout}
    agent_options = {**common, "temperature": config.temperature, "model_args": dict(config.model_args)}
    user_options = {**common, "model_args": dict(config.user_model_args)}
    servers = ModelServers()

    def model(name: str, provider: str | None, options: dict[str, Any]) -> Model:
        if names_local_model(name, provider=provider, model_args=options["model_args"]):
            server = servers.of(name)
            if options is agent_options and config.agent == "tool-calling":
                check_tools(server.file, server.backend)
            return LocalModel(server, **options)
        return remote_model(name, provider, limiters=limiters, prompt_cache=config.prompt_cache, **options)

    models: dict[Role, Model] = {}
    if agent and config.model:
        models["agent"] = model(config.model, config.provider, agent_options)
    if user and config.sim_model:
        models["user"] = model(config.sim_model, config.user_provider, user_options)
    return models
