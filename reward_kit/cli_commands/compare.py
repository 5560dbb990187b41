"""``reward-kit compare``: is evaluation B better than evaluation A, by how much, and on which rows."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from reward_kit.cli_commands.printing import print_lines
from reward_kit.cli_commands.runs_option import runs_option

DONE, WORSE = 0, 1


@click.command("compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@runs_option
@click.option(
    "--json",
    "json_path",
    metavar="PATH",
    help="Write numbers and all rows to a file (-: to the output).",
)
@click.option("--changed-rows", is_flag=True, help="Compare rows whose fields or seed have changed, too.")
@click.option("--fail-if-worse", is_flag=True, help="Exit with 1 if the interval of Pass^1 is below zero.")
def compare(
    a: str, b: str, output_dir: str, json_path: str | None, changed_rows: bool, fail_if_worse: bool
) -> int:
    """Compare two evaluations, row by row: which is better, and is it noise?

    A and B are names of evaluations (latest: the last), or paths of their logs or results. The
    difference has a 95 % interval that takes each row as one sample. Exit code 2 for a fault.
    """
    from reward_kit.agent.comparing import compare as compared
    from reward_kit.agent.reports.comparison_report import comparison_lines
    from reward_kit.agent.runs.atomic_file import readable_json, write_file

    if json_path not in (None, "-") and not Path(json_path).absolute().parent.is_dir():
        raise click.UsageError(f"--json {json_path} lies in no folder")
    comparison = compared(a, b, output_dir=output_dir, changed_rows=changed_rows)
    print_lines(comparison_lines(comparison), err=json_path == "-")
    if json_path == "-":
        sys.stdout.buffer.write(readable_json(comparison.to_json()))
    elif json_path is not None:
        write_file(Path(json_path), readable_json(comparison.to_json()))
    return WORSE if fail_if_worse and comparison.success.verdict == "worse" else DONE
