"""``reward-kit validate``: check a bundle without a model."""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.files import TO_OUTPUT
from reward_kit.agent.base.printing import Styled, folded, say, terminal_width
from reward_kit.agent.base.text import count
from reward_kit.cli.options import command, file_option, output_for, print_report, rows_option, runs_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.checks import ValidationReport
    from reward_kit.agent.checks.findings import Grade
    from reward_kit.agent.config import EvaluationConfig

PAUSE = 0.1, 30.0
"""Seconds between two signs of life: on a terminal, and elsewhere."""
MOST = 20
"""Findings of one kind that are shown."""
STYLES: dict[Grade, dict[str, Any]] = {
    "error": {"fg": "red", "bold": True},
    "warning": {"fg": "yellow", "bold": True},
    "note": {"bold": True},
}


@command()
@click.argument("bundle", required=False)
@click.option(
    "--deep", is_flag=True, help="Also play wrong calls, to find rows that measure the wrong thing."
)
@rows_option("Only these rows: ids, patterns, positions from 0.")
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@file_option("--json", help="Write all findings as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--task-dir", hidden=True)  # as agent-eval has it, where --help-all lists it
@click.option(
    "--against",
    multiple=True,
    metavar="DATASET",
    help="Look for near-duplicates in this split; repeatable, implies --deep. Default: all of the folder.",
)
@click.option(
    "--evaluation",
    "evaluations",
    multiple=True,
    metavar="NAME",
    help="Also look at the rollouts of this evaluation; repeatable, implies --deep.",
)
@runs_option
@click.option("--schema", is_flag=True, help="Print the JSON schema of a row, for editors; check nothing.")
def validate(bundle: str | None, task_dir: str | None, task_ids: str | None, **options: Any) -> int:
    """Check a bundle without a model; --deep: its tasks, too.

    With --deep, also find broken tasks: wrong gold calls, lenient rewards, duplicates. docs/validate.md
    explains each kind of finding. The exit code is 0 without errors, 1 with some, and 2 if the bundle cannot
    be read.
    """
    if options.pop("schema"):
        from reward_kit.agent.rows.task_row import row_schema

        say(json.dumps(row_schema(), indent=2))
        return 0
    if bundle is None and task_dir is None:
        raise click.UsageError("Missing argument 'BUNDLE'.")

    def chosen(tasks: Sequence[Task]) -> list[Task]:
        from reward_kit.agent.bundles.task import select_tasks

        return select_tasks(tasks, task_ids=task_ids, called=lambda _: "--rows")

    options["against"] = options["against"] or None
    return int(not _checked(bundle, {"task_dir": task_dir}, chosen, **options))


def check(config: EvaluationConfig) -> int:
    """Check the rows that the options of ``agent-eval`` choose; returns the exit code."""
    from reward_kit.agent.evaluation.options import chosen_tasks

    how = {"task_dir": config.task_dir, "mode": config.mode}
    options: dict[str, Any] = {"json_path": config.json, "quiet": config.quiet, "strict": config.strict}
    if not _checked(config.dataset, how, lambda tasks: chosen_tasks(tasks, config), **options):
        return 1
    say("Task bundle successfully validated.", err=config.json == TO_OUTPUT)
    return 0


def _checked(
    dataset: str | None,
    how: dict[str, Any],
    chosen: Callable[[Sequence[Task]], list[Task]],
    *,
    json_path: str | None,
    quiet: bool,
    **options: Any,
) -> bool:
    """Check the ``chosen`` rows, show and write the findings; returns True if there are no errors."""
    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.checks import validate_async
    from reward_kit.agent.evaluation.signals import run_in_loop

    with output_for(json_path) as output:
        with TaskBundle.load(dataset, **how) as bundle, _progress(quiet=quiet) as told:
            report = run_in_loop(validate_async(bundle, tasks=chosen(bundle.tasks), progress=told, **options))
        stream = sys.stderr if json_path == TO_OUTPUT else sys.stdout
        lines = _report_lines(report, terminal_width(stream), only_errors=quiet)
        print_report(lines, report.to_json, json_path, output)
    return report.ok


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Show the work and the number of rows on stderr: in one line of a terminal, or now and then."""
    stream, is_terminal = sys.stderr, sys.stderr.isatty()
    pause = math.inf if quiet else PAUSE[not is_terminal]
    began = last = time.monotonic()

    def told(work: str, done: int, rows: int) -> None:
        nonlocal last
        if time.monotonic() - last >= pause:
            last = time.monotonic()
            line = f"{work}: {done} of {count(rows, 'row')}"
            stream.write(f"\x1b[2K{line}\r" if is_terminal else f"{line}\n")
            stream.flush()

    try:
        yield told
    finally:
        if is_terminal and last > began:
            stream.write("\x1b[2K")


def _report_lines(report: ValidationReport, width: int | None, *, only_errors: bool) -> Iterator[str]:
    """The findings by kind, folded to ``width`` (None: not at all), and the verdict, or the errors only."""
    whole = partial(folded, break_long_words=False)  # places stay in one piece
    for grade, kind, remedy, findings in report.groups():
        if grade == "error" or not only_errors:
            rows = {row for finding in findings for row in finding.rows}
            head = f"{grade}: {kind}" + (f" ({count(len(rows), 'row')})" if rows else "")
            yield from whole(Styled(f"{head}. {remedy}", 0, len(head), **STYLES[grade]), width)
            for line in "\n".join(f"  {finding.told}" for finding in findings[:MOST]).split("\n"):
                yield from whole(line, width)
            if len(findings) > MOST:
                yield f"  … and {len(findings) - MOST} more; --json FILE writes all"
            yield ""
    if only_errors and report.ok:
        return
    if report.mutation_line is not None:
        yield from whole(report.mutation_line, width)
    style: dict[str, Any] = {"fg": "green" if report.ok else "red", "bold": True}
    yield from whole(Styled(report.verdict, **style), width)
