"""Settings of FastWorkflow's processes, and checks of everything they need before the first rollout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.models.local.backends import names_local_model
from reward_kit.agent.players.agents.fastworkflow.setup import VERSION, FastWorkflowHome, base_environment
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
SHOWN_ROWS = 3
"""Ids of rows in a message about a tool."""
_TRAIN = "run `reward-kit fastworkflow train`"


def worker_environment(config: EvaluationConfig) -> dict[str, str]:
    """Build a worker's environment: this process's, the options and FastWorkflow's defaults.

    ``--model`` sets the models of agent and planner, and that of the parameter extraction unless the
    environment names one.
    """
    environment = {**_QUIET, **base_environment()}
    if model := config.model:
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
    if not home.python.exists():
        fault = f"there is no environment in {home.folder}"
    elif not home.has_right_version:
        installed = f"fastworkflow {home.version} is installed" if home.version else "has no fastworkflow"
        fault = f"the environment in {home.folder}: {installed}, {VERSION} is needed"
    elif not (home.workflow() / "_commands").is_dir():
        fault = f"no workflow is prepared in {home.workflows}"
    else:
        return []
    return [f"{fault}: run `reward-kit fastworkflow setup` (REWARD_KIT_FASTWORKFLOW names another folder)"]


def faults_of_settings(environment: Mapping[str, str], config: EvaluationConfig | None = None) -> list[str]:
    """List models that an evaluation lacks or cannot use; without ``config``, those that training lacks."""
    roles = ROLES if config else (TRAINING_ROLE,)
    faults = []
    if unnamed := [f"LLM_{role}" for role in roles if not environment.get(f"LLM_{role}")]:
        instead = "; --model NAME sets all of them" if config else ""
        how = f"name a model, as LiteLLM names it, in the environment or .env{instead}"
        faults.append(f"{', '.join(unnamed)} not set: {how}")
    if config and config.model and names_local_model(config.model, provider=config.provider):
        # FastWorkflow calls its models itself and starts no server
        remedy = "such as --model hosted_vllm/NAME --model-arg api_base=http://127.0.0.1:8000/v1"
        faults.append(
            f"--model {config.model} is a file or folder: serve it and name it as LiteLLM does, {remedy}"
        )
    return faults


def faults_of_worker(description: Mapping[str, Any]) -> list[str]:
    """List faults that a running worker reports: an untrained workflow, missing keys."""
    faults = []
    if not description["trained"]:
        faults.append(f"the workflow is not trained ({', '.join(description['untrained'])}): {_TRAIN}")
    for role, lacking in description["lacking"].items():
        if lacking:
            key = "" if any("API_BASE" in name for name in lacking) else f", or LITELLM_API_KEY_{role}"
            needed = " and ".join(lacking)
            faults.append(f"the model of LLM_{role} needs {needed}: set it{key}, in the environment or .env")
    return faults


def training_of(home: FastWorkflowHome) -> tuple[list[str], list[str]]:
    """Return faults of the workflow's training, and warnings of that of FastWorkflow's internal workflows.

    A training broken off leaves out files of a context. A run reads no models of an internal workflow, but
    ``train`` makes them.
    """
    workflow = home.workflow()
    name = f"the training of {workflow.name} is not complete"
    faults = [f"{name} ({context}): {_TRAIN}" for context in _incomplete(workflow)]
    warnings = []
    for internal in home.internal_workflows():
        missing = _incomplete(internal)
        if missing or not any(internal.glob("___command_info/*/threshold.json")):
            contexts = f" ({'; '.join(missing)})" if missing else ""
            name = f"FastWorkflow's internal workflow {internal.name}"
            warnings.append(f"{name} is not trained{contexts}: {_TRAIN}")
    return faults, warnings


def _incomplete(workflow: Path) -> list[str]:
    contexts = {file.parent for name in ARTIFACTS for file in workflow.glob(f"___command_info/*/{name}")}
    missing = {
        context.name: [name for name in ARTIFACTS if not (context / name).exists()]
        for context in sorted(contexts)
    }
    return [f"{context}: {', '.join(names)}" for context, names in missing.items() if names]


def faults_of_tools(workflow: Path, tasks: Iterable[Task]) -> tuple[list[str], list[str]]:
    """Return faults and warnings about the tasks' tools, which the workflow's commands call.

    The agent cannot call a tool without a command: a fault if a row's gold actions need it, else a warning.
    """
    tasks = list(tasks)
    without_tool, unreachable = _mismatches(workflow, tasks)
    unused = (
        {name for task in tasks for name in task.registry.tools} - _commands(workflow) - unreachable.keys()
    )
    faults = []
    if without_tool:
        found = f"commands of the workflow {workflow.name} without a tool in the bundle"
        own = "A workflow works only with its own bundle, such as tau_retail_task"
        faults.append(f"{found}: {_with_rows(without_tool)}. {own}")
    if unreachable:
        found = "tools in the rows' actions without a command in the workflow"
        faults.append(f"{found}: {_with_rows(unreachable)}; --skip-unplayable leaves these rows out")
    warning = f"tools without a FastWorkflow command, which it never calls: {', '.join(sorted(unused))}"
    return faults, [warning] if unused else []


def fault_of_row(workflow: Path, task: Task) -> str | None:
    """Return why the workflow cannot play a row, None if it can."""
    without_tool, unreachable = _mismatches(workflow, [task])
    faults = [f"no tool for the command {', '.join(sorted(without_tool))}"] if without_tool else []
    faults += [f"no command for the tool {', '.join(sorted(unreachable))}"] if unreachable else []
    return "; ".join(faults) or None


def _mismatches(workflow: Path, tasks: Iterable[Task]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Commands without a tool, and tools of gold actions without a command; each with the ids of its rows."""
    commands = _commands(workflow)
    without_tool: dict[str, list[str]] = {}
    unreachable: dict[str, list[str]] = {}
    for task in tasks:
        own = task.registry.tools.keys()
        gold = {action.name for action in task.row.actions or ()} & own
        for found, names in ((without_tool, commands - own), (unreachable, gold - commands)):
            for name in names:
                found.setdefault(name, []).append(task.row.id)
    return without_tool, unreachable


def _commands(workflow: Path) -> set[str]:
    files = (workflow / "_commands").rglob("*.py")
    return {path.stem for path in files if not path.name.startswith("_") and path.stem != "startup"}


def _with_rows(found: Mapping[str, Sequence[str]]) -> str:
    """``think (rows a, b, c and 4 more)``."""
    return ", ".join(f"{name} ({_rows(ids)})" for name, ids in sorted(found.items()))


def _rows(ids: Sequence[str]) -> str:
    more = f" and {len(ids) - SHOWN_ROWS} more" if len(ids) > SHOWN_ROWS else ""
    return f"row{'s' if len(ids) > 1 else ''} {', '.join(ids[:SHOWN_ROWS])}{more}"


def check(faults: Sequence[str]) -> None:
    """Raise ``ModelSetupError`` with all ``faults``, if there are any."""
    if len(faults) == 1:
        raise ModelSetupError(faults[0], place=PLACE)
    if faults:
        listed = "\n".join(f"  - {fault}" for fault in faults)
        raise ModelSetupError(f"FastWorkflow is not ready:\n{listed}", place=PLACE)
