"""``reward-kit fastworkflow``: set up, train and check FastWorkflow's environment."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reward_kit.agent.base.printing import say, warn
from reward_kit.agent.players.agents.fastworkflow.setup import (
    DEFAULT_WORKFLOW,
    HOME_VARIABLE,
    FastWorkflowHome,
    base_environment,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.bundles.task import Task

EXAMPLE = "Example workflow of the package to prepare."
_folder = click.option(
    "--dir",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help=f"Its folder, instead of {HOME_VARIABLE} or the user's cache.",
)


@click.group()
def fastworkflow() -> None:
    """Set up, train and check FastWorkflow as the agent.

    \b
      reward-kit fastworkflow setup
      reward-kit fastworkflow train
      reward-kit fastworkflow check
      reward-kit agent-eval -d tau_retail_task/task.jsonl --agent fastworkflow
    """


@fastworkflow.command()
@_folder
@click.option("--python", metavar="PY", help="Python for the environment (3.11 to 3.13).")
@click.option("--workflow", default=DEFAULT_WORKFLOW, show_default=True, metavar="NAME", help=EXAMPLE)
@click.argument("pip_arguments", nargs=-1, type=click.UNPROCESSED)
def setup(folder: Path | None, python: str | None, workflow: str, pip_arguments: tuple[str, ...]) -> None:
    """Make the environment, install FastWorkflow and prepare its retail workflow.

    Arguments after `--` are passed to `pip install`. An existing environment is kept; the workflow is
    prepared again and keeps its training.
    """
    from reward_kit.agent.players.agents.fastworkflow.setup import install

    home = FastWorkflowHome.find(folder)
    prepared = install(home, python, workflow, pip_arguments)
    say(f"FastWorkflow {home.version} is in {home.folder}")
    say(f"workflow: {prepared}")


@fastworkflow.command()
@_folder
def train(folder: Path | None) -> None:
    """Train the workflow's intent models, with the model of LLM_SYNDATA_GEN.

    Needs FastWorkflow's base models (two small ones from the Hugging Face hub) and takes some minutes.
    """
    from reward_kit.agent.players.agents.fastworkflow import preflight
    from reward_kit.agent.players.agents.fastworkflow.setup import train as run_training

    home = FastWorkflowHome.find(folder)
    preflight.check([*preflight.faults_of_home(home), *preflight.faults_of_settings(base_environment())])
    run_training(home)


@fastworkflow.command()
@click.argument("bundle", required=False)
@_folder
@click.option("-d", "--dataset", metavar="PATH", help="Another way to name BUNDLE.")
@click.option("--model", metavar="NAME", help="As for agent-eval.")
def check(bundle: str | None, folder: Path | None, dataset: str | None, model: str | None) -> None:
    """List everything that is missing before a run; starts one worker.

    With BUNDLE, the workflow's commands are compared with its tools.
    """
    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.players.agents.fastworkflow.agent import FastWorkflow

    dataset = dataset or bundle
    config = EvaluationConfig(dataset=dataset, model=model, agent="fastworkflow")
    home = FastWorkflowHome.find(folder)

    async def start_one(tasks: Sequence[Task]) -> None:
        factory = FastWorkflow(config, tasks, home=home, warn=warn)
        try:
            await factory.open()
        finally:
            await factory.close()

    with nullcontext() if dataset is None else TaskBundle.load(dataset) as opened:
        asyncio.run(start_one(opened.tasks if opened is not None else ()))
    say(f"FastWorkflow {home.version} is ready: {home.workflow()}")
