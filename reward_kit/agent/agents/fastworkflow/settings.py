"""Which models FastWorkflow asks, and what its processes are told: all of it by way of the environment."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from reward_kit.agent.agents.fastworkflow.environment import CONSTANTS
from reward_kit.agent.redaction import is_secret_name

if TYPE_CHECKING:
    from reward_kit.agent.evaluation_config import EvaluationConfig

ROLES = ("AGENT", "PLANNER", "PARAM_EXTRACTION")
"""The models of a conversation are named by ``LLM_<ROLE>``, their keys by ``LITELLM_API_KEY_<ROLE>``."""

TRAINING_ROLE = "SYNDATA_GEN"
MODEL_ARGUMENTS = "REWARD_KIT_FASTWORKFLOW_MODEL_ARGS"
"""Carries the arguments of all model calls (temperature, --model-arg) to a worker; may hold keys."""


def worker_environment(config: EvaluationConfig) -> dict[str, str]:
    """The environment of a worker: this process's, with what the options and FastWorkflow's defaults add.

    ``--model`` stands for the models of agent and planner, and for that of the parameter extraction where the
    environment names none.
    """
    environment = {**_QUIET, **base_environment()}
    if config.model:
        model = config.model
        if config.provider and not model.startswith(f"{config.provider}/"):
            model = f"{config.provider}/{model}"
        environment["LLM_AGENT"] = environment["LLM_PLANNER"] = model
        if not environment.get("LLM_PARAM_EXTRACTION"):
            environment["LLM_PARAM_EXTRACTION"] = model
    environment["LOG_LEVEL"] = "WARNING"  # others' values would stop FastWorkflow when it is imported
    environment[MODEL_ARGUMENTS] = json.dumps(_model_arguments(config))
    return environment


def base_environment() -> dict[str, str]:
    """The process's environment over FastWorkflow's constants."""
    return {**CONSTANTS, **os.environ}


def hidden_arguments(config: EvaluationConfig) -> list[str]:
    """Secrets among the model arguments: these are in no environment variable of this process."""
    return [str(value) for name, value in config.model_args.items() if is_secret_name(name)]


def _model_arguments(config: EvaluationConfig) -> dict[str, Any]:
    arguments: dict[str, Any] = {"num_retries": config.retries}
    if config.temperature is not None:
        arguments["temperature"] = config.temperature
    return {**arguments, **config.model_args}


_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",  # the models that are needed were trained before, and are here
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",  # the intent models are small, and several rollouts ask them at once
}
"""Nothing is fetched, little is printed; what the environment says otherwise counts."""
