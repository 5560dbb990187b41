"""Settings of FastWorkflow's processes, and checks of everything they need before the first rollout."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from reward_kit.agent.agents.fastworkflow.home import CONSTANTS, VERSION, FastWorkflowHome
from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig

PLACE = "--agent fastworkflow"
ROLES = ("AGENT", "PLANNER", "PARAM_EXTRACTION")
"""The models of a conversation are named by ``LLM_<ROLE>``, their keys by ``LITELLM_API_KEY_<ROLE>``."""

TRAINING_ROLE = "SYNDATA_GEN"
ARTIFACTS = (
    *("tinymodel.pth", "largemodel.pth", "label_encoder.pkl"),
    *("threshold.json", "tiny_ambiguous_threshold.json", "large_ambiguous_threshold.json"),
)
"""Files that FastWorkflow's training writes for each context of a workflow."""
MODEL_ARGUMENTS = "REWARD_KIT_FASTWORKFLOW_MODEL_ARGS"
"""Passes the arguments of all model calls (temperature, --model-arg) to a worker; may hold keys."""
_QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "HF_HUB_OFFLINE": "1",  # the models were trained before
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",  # small intent models, several rollouts at once
}
"""No downloads and little output, unless the environment says otherwise."""


def base_environment() -> dict[str, str]:
    """Return FastWorkflow's constants, overridden by this process's environment."""
    return {**CONSTANTS, **os.environ}


def worker_environment(config: EvaluationConfig) -> dict[str, str]:
    """Build a worker's environment: this process's, the options and FastWorkflow's defaults.

    ``--model`` sets the models of agent and planner, and that of the parameter extraction unless the
    environment names one.
    """
    environment = {**_QUIET, **base_environment()}
    if config.model:
        model = config.model
        if config.provider and not model.startswith(f"{config.provider}/"):
            model = f"{config.provider}/{model}"
        environment["LLM_AGENT"] = environment["LLM_PLANNER"] = model
        environment["LLM_PARAM_EXTRACTION"] = environment.get("LLM_PARAM_EXTRACTION") or model
    environment["LOG_LEVEL"] = "WARNING"  # other values make the import of FastWorkflow fail
    arguments: dict[str, Any] = {"num_retries": config.retries}
    if config.temperature is not None:
        arguments["temperature"] = config.temperature
    environment[MODEL_ARGUMENTS] = json.dumps({**arguments, **config.model_args})
    return environment


def faults_of_home(home: FastWorkflowHome) -> list[str]:
    """List what ``reward-kit fastworkflow setup`` still has to create."""
    faults = []
    if not home.python.exists():
        faults.append(f"there is no environment in {home.folder}")
    elif not home.has_right_version:
        installed = f"fastworkflow {home.version} is installed" if home.version else "has no fastworkflow"
        faults.append(f"the environment in {home.folder}: {installed}, {VERSION} is needed")
    elif home.workflow() is None:
        faults.append(f"no workflow is prepared in {home.workflows}")
    remedy = "run `reward-kit fastworkflow setup` (REWARD_KIT_FASTWORKFLOW names another folder)"
    return [f"{fault}: {remedy}" for fault in faults]


def faults_of_settings(environment: Mapping[str, str], roles: Sequence[str] = ROLES) -> list[str]:
    """List roles without a model."""
    unnamed = [f"LLM_{role}" for role in roles if not environment.get(f"LLM_{role}")]
    if not unnamed:
        return []
    instead = "; --model NAME sets all of them" if roles == ROLES else ""
    how = f"name a model, as LiteLLM names it, in the environment or .env{instead}"
    return [f"{', '.join(unnamed)} not set: {how}"]


def faults_of_worker(description: Mapping[str, Any]) -> list[str]:
    """List faults that a running worker reports: an untrained workflow, missing keys."""
    faults = []
    if not description["trained"]:
        missing = ", ".join(description["untrained"])
        faults.append(f"the workflow is not trained ({missing}): run `reward-kit fastworkflow train`")
    for role, variables in description["lacking"].items():
        lacking = [name for name in variables if name != f"LLM_{role}"]  # see faults_of_settings
        if lacking:
            key = "" if any("API_BASE" in name for name in lacking) else f", or LITELLM_API_KEY_{role}"
            needed = " and ".join(lacking)
            faults.append(f"the model of LLM_{role} needs {needed}: set it{key}, in the environment or .env")
    return faults


def incomplete_training(workflow: Path) -> list[str]:
    """List contexts with a part of the trained files missing, as after a training broken off."""
    trained = sorted(
        {file.parent for name in ARTIFACTS for file in workflow.glob(f"___command_info/*/{name}")}
    )
    missing = {part.name: [name for name in ARTIFACTS if not (part / name).exists()] for part in trained}
    return [f"{part}: {', '.join(names)}" for part, names in missing.items() if names]


def training_of(home: FastWorkflowHome) -> tuple[list[str], list[str]]:
    """Return faults of the workflow's training, and warnings of that of FastWorkflow's internal workflows.

    A run reads no models of an internal workflow, but ``train`` makes them.
    """
    remedy = "run `reward-kit fastworkflow train`"
    workflow = home.workflow()
    faults = []
    if workflow is not None:
        name = f"the training of {workflow.name} is not complete"
        faults = [f"{name} ({part}): {remedy}" for part in incomplete_training(workflow)]
    warnings = []
    for internal in home.internal_workflows():
        missing = incomplete_training(internal)
        if missing or not any(internal.glob("___command_info/*/threshold.json")):
            parts = f" ({'; '.join(missing)})" if missing else ""
            name = f"FastWorkflow's internal workflow {internal.name}"
            warnings.append(f"{name} is not trained{parts}: {remedy}")
    return faults, warnings


def faults_of_tools(home: FastWorkflowHome, tasks: Iterable[Task]) -> tuple[list[str], list[str]]:
    """Return faults and warnings about the tasks' tools, which the workflow's commands call.

    The agent cannot call a tool without a command: a fault if a row's gold actions need it, else a warning.
    """
    workflow = home.workflow()
    if workflow is None:
        return [], []
    files = (workflow / "_commands").rglob("*.py")
    commands = {path.stem for path in files if not path.name.startswith("_") and path.stem != "startup"}
    tools: set[str] = set()
    gold: set[str] = set()
    without_tool: set[str] = set()
    for task in tasks:
        own = set(task.registry.tools)
        tools |= own
        without_tool |= commands - own
        gold |= {action.name for action in task.row.actions or ()} & own
    unreachable = gold - commands
    unused = tools - commands - unreachable
    faults = {
        f"commands of the workflow {workflow.name} without a tool in the bundle: {{}}. "
        "A workflow works only with its own bundle, such as tau_retail_task": without_tool,
        "tools in the rows' actions without a command in the workflow: {}": unreachable,
    }
    warnings = {"tools without a FastWorkflow command, which it never calls: {}": unused}
    return _listed(faults), _listed(warnings)


def _listed(found: Mapping[str, set[str]]) -> list[str]:
    return [text.format(", ".join(sorted(names))) for text, names in found.items() if names]


def check(faults: Sequence[str]) -> None:
    """Raise ``ModelSetupError`` with all ``faults``, if there are any."""
    if len(faults) == 1:
        raise ModelSetupError(faults[0], place=PLACE)
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in faults)
        raise ModelSetupError(f"FastWorkflow is not ready:\n{listed}", place=PLACE)
