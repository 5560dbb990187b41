"""``reward-kit fastworkflow``: make, train and check what ``--agent fastworkflow`` runs in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reward_kit.agent.agents.fastworkflow.environment import DEFAULT_WORKFLOW, HOME_VARIABLE, FastWorkflowHome
from reward_kit.cli_commands.printing import say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.bundles.task import Task

_folder = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Where it lives, instead of {HOME_VARIABLE} or the user's cache.",
)


@click.group()
def fastworkflow() -> None:
    """FastWorkflow's agent as the agent under test: its environment, its training, what is missing.

    \b
      reward-kit fastworkflow setup
      reward-kit fastworkflow train
      reward-kit fastworkflow check
      reward-kit agent-eval -d tau_retail_task/task.jsonl --agent fastworkflow
    """


@fastworkflow.command()
@_folder
@click.option("--python", metavar="PY", help="The Python to make the environment with (3.11 to 3.13).")
@click.option(
    "--workflow",
    default=DEFAULT_WORKFLOW,
    show_default=True,
    metavar="NAME",
    help="The example of the package that is prepared.",
)
@click.argument("pip_arguments", nargs=-1, type=click.UNPROCESSED)
def setup(folder: Path | None, python: str | None, workflow: str, pip_arguments: tuple[str, ...]) -> None:
    """Make the environment, install FastWorkflow and prepare its retail workflow.

    What follows `--` is handed to `pip install`. An environment that is there is kept; the workflow is
    prepared anew, and keeps what was trained.
    """
    from reward_kit.agent.agents.fastworkflow.installation import install

    home = FastWorkflowHome.find(folder)
    prepared = install(home, python, workflow, pip_arguments)
    say(f"FastWorkflow {home.version} is in {home.folder}")
    say(f"workflow: {prepared}")


@fastworkflow.command()
@_folder
def train(folder: Path | None) -> None:
    """Train the workflow's intent models, with the model of LLM_SYNDATA_GEN.

    Needs the models that FastWorkflow starts from (two small ones of the Hugging Face hub) and takes some
    minutes.
    """
    from reward_kit.agent.agents.fastworkflow import preflight
    from reward_kit.agent.agents.fastworkflow.installation import train as run_training
    from reward_kit.agent.agents.fastworkflow.settings import TRAINING_ROLE, base_environment

    home = FastWorkflowHome.find(folder)
    faults = preflight.faults_of_home(home)
    preflight.check([*faults, *preflight.faults_of_settings(base_environment(), (TRAINING_ROLE,))])
    workflow = home.workflow()
    assert workflow is not None, "told by the preflight"
    run_training(home, workflow)


@fastworkflow.command()
@_folder
@click.option(
    "-d", "--dataset", metavar="PATH", help="Compare the workflow's commands with this bundle's tools."
)
@click.option("--model", metavar="NAME", help="As for agent-eval.")
def check(folder: Path | None, dataset: str | None, model: str | None) -> None:
    """Say what is missing before a run, all of it at once; starts one worker to look."""
    from reward_kit.agent.agents.fastworkflow.agent import FastWorkflow
    from reward_kit.agent.evaluation_config import EvaluationConfig

    config = EvaluationConfig(dataset=dataset, model=model, agent="fastworkflow")
    home = FastWorkflowHome.find(folder)

    async def look(tasks: Sequence[Task]) -> None:
        factory = FastWorkflow(config, tasks, home=home, warn=_warn)
        try:
            await factory.open()
        finally:
            await factory.close()

    if dataset is None:
        asyncio.run(look([]))
    else:
        from reward_kit.agent.bundle import TaskBundle

        with TaskBundle.load(dataset) as bundle:
            asyncio.run(look(bundle.tasks))
    say(f"FastWorkflow {home.version} is ready: {home.workflow()}")


def _warn(warning: str) -> None:
    say(f"warning: {warning}", err=True)
