"""``reward-kit audit``: rows of a bundle that measure the wrong thing, found without a model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.text import count
from reward_kit.cli.common_options import file_option, print_report, runs_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.checks.findings import AuditReport


@click.command("audit")
@click.argument("bundle", metavar="BUNDLE")
@click.option("--task-dir", metavar="DIR", help="The bundle's folder, if the dataset lies elsewhere.")
@click.option(
    "--task-ids", metavar="IDS", help="Only these rows: ids or positions from 0, separated by commas."
)
@click.option(
    "--against",
    multiple=True,
    metavar="DATASET",
    help="Another split to look for near-duplicates in; repeatable. Default: all .jsonl files of the folder.",
)
@click.option(
    "--evaluation",
    "evaluations",
    multiple=True,
    metavar="NAME",
    help="Also look at the rollouts of this evaluation; repeatable.",
)
@runs_option
@click.option("--strict", is_flag=True, help="Exit with 1 for warnings too.")
@file_option("--json", help="Write the findings as JSON.")
def audit(
    bundle: str,
    task_dir: str | None,
    task_ids: str | None,
    against: tuple[str, ...],
    strict: bool,
    json_path: str | None,
    **options: Any,
) -> int:
    """Look for tasks that measure the wrong thing, without a model.

    BUNDLE is a .jsonl file, a bundle's folder, a packed or an installed bundle. The audit runs
    --validate-only, plays mutants of each row's gold calls, and asks the reward about them. docs/audit.md
    explains each kind of finding.
    The exit code is 1 if a finding has the grade error, and 2 after an error in the command or the bundle.
    """
    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.checks.bundle_audit import audit as audit_bundle
    from reward_kit.agent.evaluation.signals import run_in_loop

    with TaskBundle.load(bundle, task_dir=task_dir) as opened:
        tasks = opened.select(task_ids=task_ids)
        report = run_in_loop(audit_bundle(opened, tasks=tasks, against=against or None, **options))
    print_report(_lines(report), report.to_json, json_path)
    failing = {"error", "warning"} if strict else {"error"}
    return int(any(finding.grade in failing for finding in report.findings))


def _lines(report: AuditReport) -> Iterator[str]:
    from reward_kit.agent.checks.findings import KINDS

    yield from map(str, report.findings)
    if report.findings:
        yield ""
        yield f"{'kind':18}{'grade':9}{'findings':>8}{'rows':>6}  remedy"
        for kind, grade, number, rows in report.counts():
            yield f"{kind:18}{grade:9}{number:>8}{rows:>6}  {KINDS[kind].remedy}"
        yield ""
    if report.mutation_score is not None:
        refused = report.mutants - sum(row.paid for row in report.rows)
        mutants = f"{refused} of {count(report.mutants, 'mutant')} of the gold calls"
        yield f"mutation score {report.mutation_score:.3f}: the reward refuses {mutants}"
    yield f"{count(len(report.findings), 'finding')} in {count(len(report.rows), 'row')} with gold actions"
