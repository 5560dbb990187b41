"""``reward-kit compare``: is evaluation B better than evaluation A, by how much, and on which rows."""

from __future__ import annotations

import sys
from typing import Any

import click

from reward_kit.agent.base.files import TO_OUTPUT, check_target, write_output
from reward_kit.agent.base.printing import print_lines, terminal_width
from reward_kit.cli_commands.runs_option import runs_option

DONE, WORSE = 0, 1


@click.command("compare")
@click.argument("evaluations", metavar="A B [C]...", nargs=-1)
@runs_option
@click.option("--baseline", metavar="NAME", help="Compare all others with this one instead of the first.")
@click.option(
    "--json", "json_path", metavar="PATH", help="Write numbers and all rows to a file (-: to the output)."
)
@click.option("--markdown", is_flag=True, help="Print only a table to share and the verdicts, as Markdown.")
@click.option("--changed-rows", is_flag=True, help="Also compare rows whose fields or seed have changed.")
@click.option("--fail-if-worse", is_flag=True, help="Exit with 1 if B is worse on these tasks.")
def compare(
    evaluations: tuple[str, ...],
    baseline: str | None,
    json_path: str | None,
    markdown: bool,
    fail_if_worse: bool,
    **options: Any,
) -> int:
    """Compare evaluations, row by row: which is better, and is it noise?

    A, B … are names of evaluations (latest: the last), or paths of their logs, results or cards. Each is
    compared with A. Each difference has two 95 % intervals: for these tasks, where only the rollouts are
    random, and for tasks like these, where the rows are a sample as well. The exit code is 2 after an error.
    """
    from reward_kit.agent.base.strict_json import readable_json
    from reward_kit.agent.comparison.compare import compare as compare_two
    from reward_kit.agent.comparison.compare import compare_with
    from reward_kit.agent.reports.comparison import baseline_lines, comparison_lines, markdown_lines

    check_target("--json", json_path)
    named = [*evaluations] if baseline is None else [baseline, *evaluations]
    if len(named) < 2:
        raise click.UsageError("Name the evaluations to compare: two or more.")
    to_stderr = json_path == TO_OUTPUT
    if len(named) == 2:
        several = [compare_two(*named, **options)]
    else:
        found = compare_with(named[0], named[1:], **options)
        several = [*found.comparisons]
    if len(several) == 1:
        plain, lines = several[0].to_json(), comparison_lines(several[0])
    else:
        plain = found.to_json()
        lines = baseline_lines(found, terminal_width(sys.stderr if to_stderr else sys.stdout))
    print_lines(markdown_lines(several) if markdown else lines, err=to_stderr)
    if json_path is not None:
        write_output([readable_json(plain)], json_path)
    worse = any(comparison.success.verdicts.these_tasks == "worse" for comparison in several)
    return WORSE if fail_if_worse and worse else DONE
