"""``reward-kit compare``: is evaluation B better than evaluation A, by how much, and on which rows."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.printing import print_lines, terminal_width
from reward_kit.cli_commands.runs_option import runs_option

if TYPE_CHECKING:
    from reward_kit.agent.comparison.compare import BaselineComparison, EvaluationComparison

DONE, WORSE = 0, 1


@click.command("compare")
@click.argument("evaluations", metavar="A B [C]...", nargs=-1)
@runs_option
@click.option(
    "--baseline", metavar="NAME", help="Compare all others with this one, instead of with the first."
)
@click.option(
    "--json",
    "json_path",
    metavar="PATH",
    help="Write numbers and all rows to a file (-: to the output).",
)
@click.option(
    "--markdown", is_flag=True, help="Print a table to share and the verdicts, as Markdown, and nothing else."
)
@click.option("--changed-rows", is_flag=True, help="Compare rows whose fields or seed have changed, too.")
@click.option("--fail-if-worse", is_flag=True, help="Exit with 1 if the interval of Pass^1 is below zero.")
def compare(
    evaluations: tuple[str, ...],
    output_dir: str,
    baseline: str | None,
    json_path: str | None,
    markdown: bool,
    changed_rows: bool,
    fail_if_worse: bool,
) -> int:
    """Compare evaluations, row by row: which is better, and is it noise?

    A, B … are names of evaluations (latest: the last), or paths of their logs or results. Each is
    compared with A. The difference has a 95 % interval that takes each row as one sample. Exit code 2
    for a fault.
    """
    from reward_kit.agent.base.files import TO_OUTPUT, check_target, write_output
    from reward_kit.agent.base.strict_json import readable_json
    from reward_kit.agent.comparison.compare import BaselineComparison
    from reward_kit.agent.reports.comparison import baseline_lines, comparison_lines, markdown_lines

    check_target("--json", json_path)
    named = [*evaluations] if baseline is None else [baseline, *evaluations]
    if len(named) < 2:
        raise click.UsageError("Name the evaluations to compare: two or more.")
    found = _compared(*named, output_dir=output_dir, changed_rows=changed_rows)
    several = found.comparisons if isinstance(found, BaselineComparison) else (found,)
    to_stderr = json_path == TO_OUTPUT
    if markdown:
        lines = markdown_lines(several)
    elif isinstance(found, BaselineComparison):
        lines = baseline_lines(found, terminal_width(sys.stderr if to_stderr else sys.stdout))
    else:
        lines = comparison_lines(found)
    print_lines(lines, err=to_stderr)
    if json_path is not None:
        write_output([readable_json(found.to_json())], json_path)
    worse = any(comparison.success.verdict == "worse" for comparison in several)
    return WORSE if fail_if_worse and worse else DONE


def _compared(first: str, *others: str, **options: Any) -> EvaluationComparison | BaselineComparison:
    """All others with the first; for one other, or one beside the first itself, their comparison alone."""
    from reward_kit.agent.comparison.compare import compare as compare_two
    from reward_kit.agent.comparison.compare import compare_with

    if len(others) == 1:
        return compare_two(first, others[0], **options)
    found = compare_with(first, others, **options)
    return found if len(found.comparisons) > 1 else found.comparisons[0]
