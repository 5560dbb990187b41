"""What is missing before FastWorkflow can play, all of it in one message, each with its remedy."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from reward_kit.agent.agents.fastworkflow.environment import VERSION, FastWorkflowHome, commands_of
from reward_kit.agent.agents.fastworkflow.settings import ROLES
from reward_kit.errors import ModelSetupError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from reward_kit.agent.bundles.task import Task

logger = logging.getLogger(__name__)

PLACE = "--agent fastworkflow"


def faults_of_home(home: FastWorkflowHome) -> list[str]:
    """What ``reward-kit fastworkflow setup`` would have made and is not there."""
    remedy = "`reward-kit fastworkflow setup` makes it (REWARD_KIT_FASTWORKFLOW names another folder)"
    if not home.python.exists():
        return [f"there is no environment in {home.folder}: {remedy}"]
    faults = []
    if home.version is None:
        faults.append(f"the environment in {home.folder} has no fastworkflow: {remedy}")
    elif not home.has_right_version:
        faults.append(
            f"fastworkflow {home.version} is installed in {home.folder}, {VERSION} is needed: {remedy}"
        )
    if home.workflow() is None:
        faults.append(f"no workflow is prepared in {home.workflows}: {remedy}")
    return faults


def faults_of_settings(environment: Mapping[str, str], roles: Sequence[str] = ROLES) -> list[str]:
    """Roles for which no model is named."""
    unnamed = [f"LLM_{role}" for role in roles if not environment.get(f"LLM_{role}")]
    if not unnamed:
        return []
    how = "as LiteLLM names it, in the environment or .env"
    instead = "" if roles != ROLES else "; --model NAME stands for all of them"
    return [
        f"{', '.join(unnamed)} {'is' if len(unnamed) == 1 else 'are'} not set: name a model, {how}{instead}"
    ]


def faults_of_worker(description: Mapping[str, Any]) -> list[str]:
    """What a running worker finds: an untrained workflow, keys that its models lack."""
    faults = []
    if not description["trained"]:
        missing = ", ".join(description["untrained"])
        faults.append(f"the workflow is not trained ({missing}): `reward-kit fastworkflow train` does it")
    for role, variables in description["lacking"].items():
        lacking = [name for name in variables if name != f"LLM_{role}"]  # told by faults_of_settings
        if lacking:
            key = "" if any("API_BASE" in name for name in lacking) else f", or LITELLM_API_KEY_{role}"
            needed = " and ".join(lacking)
            faults.append(f"the model of LLM_{role} needs {needed}: set it{key}, in the environment or .env")
    return faults


def faults_of_tools(home: FastWorkflowHome, tasks: Iterable[Task]) -> tuple[list[str], list[str]]:
    """Faults and warnings about the tasks' tools: what the agent's commands call has to be there.

    A tool without a command is one that the agent can never call: a fault where a row's gold actions need
    it, else worth a warning.
    """
    workflow = home.workflow()
    if workflow is None:
        return [], []
    commands = commands_of(workflow)
    tools: set[str] = set()
    gold: set[str] = set()
    lost: set[str] = set()
    for task in tasks:
        own = set(task.registry.tools)
        tools |= own
        lost |= commands - own
        gold |= {action.name for action in task.row.actions or ()} & own
    faults = []
    if lost:
        faults.append(
            f"commands of the workflow {workflow.name} without a tool in the bundle: {_names(lost)}. "
            "A workflow plays only the bundle that it was made for, such as tau_retail_task"
        )
    unreachable = gold - commands
    if unreachable:
        faults.append(
            f"tools that the rows' actions need and the workflow has no command for: {_names(unreachable)}"
        )
    left = tools - commands - unreachable
    warnings = (
        [f"tools that FastWorkflow has no command for, and never calls: {_names(left)}"] if left else []
    )
    return faults, warnings


def check(faults: Sequence[str]) -> None:
    """Raise ``ModelSetupError`` with all ``faults``, if there are any."""
    if not faults:
        return
    if len(faults) == 1:
        raise ModelSetupError(faults[0], place=PLACE)
    listed = "\n".join(f"  - {fault}" for fault in faults)
    raise ModelSetupError(f"FastWorkflow is not ready:\n{listed}", place=PLACE)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
