"""``reward-kit port``: benchmarks of others as bundles, and their results as evaluations."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import click

from reward_kit.agent.base.files import TO_OUTPUT
from reward_kit.cli.agent_eval import DONE, INCOMPLETE, evaluated
from reward_kit.cli.common_options import Command, command, file_option, rows_option, runs_option
from reward_kit.cli.port_tasks import tau2, tau_bench


class _Commands(click.Group):
    command_class = Command


@click.group(cls=_Commands)
def port() -> None:
    """Read the tasks and results of other benchmarks."""


@command("results")
@click.argument("file")
@click.option("-d", "--dataset", metavar="PATH", required=True, help="The bundle that has the file's tasks.")
@runs_option
@click.option("--eval-id", metavar="NAME", help="The evaluation's name. Default: the time and a random part.")
@rows_option("Only these rows: ids, patterns (book.*) or positions from 0, separated by commas.")
@click.option("--mode", type=click.Choice(["solo"]), help="solo: the file's agent had no user.")
@click.option("--errors-as-failures", is_flag=True, help="Count simulations without a grade as failed.")
@file_option("--json", help="Write all as JSON: grades, rows, conversations. Default FILE: the output.")
def results(file: str, json_path: str | None, **options: Any) -> int:
    """Grade a results file of tau-bench or tau2-bench again.

    \b
      reward-kit port results airline.json --dataset tau2_airline --eval-id theirs
      reward-kit show theirs
      reward-kit compare theirs latest

    Each simulation of FILE becomes a rollout: its calls, of agent and user, are made again on the row's
    database, and the bundle's reward grades what comes of them. The report names each grade that moved, with
    the part of it that did, each task that the file has otherwise, answers that differ from the recorded
    ones, and missing trials. FILE may be a folder with results.json and simulations/.

    The exit code is 1 if a grade moved or a simulation could not be graded.
    """
    from reward_kit.agent.base.printing import reserved_output
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.cli.report_output import print_result, write_asked

    config = EvaluationConfig(**options, from_tau_bench=file, json=json_path)
    with reserved_output() if json_path == TO_OUTPUT else nullcontext() as output:
        result = evaluated(config)
        print_result(result, config)
        write_asked(result, config, output)
    moved = result.agreement is not None and result.agreement.disagreements
    return INCOMPLETE if moved or result.status != "complete" or result.unjudged else DONE


port.add_command(tau2)
port.add_command(tau_bench)
port.add_command(results)
