"""``reward-kit validate``: check a bundle without a model."""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from reward_kit.agent.base.files import TO_OUTPUT, write_output
from reward_kit.agent.base.printing import print_lines, reserved_output, say, terminal_width
from reward_kit.agent.base.text import count
from reward_kit.cli.common_options import command, file_option, rows_option, runs_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.checks import ValidationReport
    from reward_kit.agent.config import EvaluationConfig

PAUSE = 0.1, 30.0
"""Seconds between two signs of life: on a terminal, and elsewhere."""


@command()
@click.argument("bundle", required=False)
@click.option(
    "--deep", is_flag=True, help="Also play wrong calls, to find rows that measure the wrong thing."
)
@rows_option("Only these rows: ids, patterns, positions from 0.")
@click.option("--strict", is_flag=True, help="Count warnings as errors.")
@file_option("--json", help="Write all findings as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--task-dir", metavar="DIR", help="The bundle's folder, if the dataset is elsewhere.")
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
def validate(
    bundle: str | None,
    deep: bool,
    task_ids: str | None,
    strict: bool,
    json_path: str | None,
    quiet: bool,
    task_dir: str | None,
    against: tuple[str, ...],
    evaluations: tuple[str, ...],
    output_dir: str,
    schema: bool,
) -> int:
    """Check a bundle without a model; --deep: its tasks, too.

    With --deep, also find broken tasks: wrong gold calls, lenient rewards, duplicates. docs/validate.md
    explains each kind of finding. The exit code is 0 without errors, 1 with some, and 2 if the bundle cannot
    be read.
    """
    if schema:
        from reward_kit.agent.rows.task_row import row_schema

        say(json.dumps(row_schema(), indent=2))
        return 0
    if bundle is None and task_dir is None:
        raise click.UsageError("Missing argument 'BUNDLE'.")

    def chosen(tasks: Sequence[Task]) -> list[Task]:
        from reward_kit.agent.bundles.task import select_tasks

        return select_tasks(tasks, task_ids=task_ids, called=lambda _: "--rows")

    options: dict[str, Any] = {
        "deep": deep,
        "against": against or None,
        "evaluations": evaluations,
        "output_dir": output_dir,
    }
    with reserved_output() if json_path == TO_OUTPUT else nullcontext() as output:
        report = _report(bundle, task_dir, chosen, quiet=quiet, strict=strict, **options)
        _show(report, json_path, output, quiet=quiet)
    return int(not report.ok)


def check(config: EvaluationConfig, output: BinaryIO | None) -> int:
    """Check the rows that the options of ``agent-eval`` choose; returns the exit code."""
    from reward_kit.agent.evaluation.options import chosen_tasks

    report = _report(
        config.dataset,
        config.task_dir,
        lambda tasks: chosen_tasks(tasks, config),
        mode=config.mode,
        quiet=config.quiet,
        strict=config.strict,
    )
    _show(report, config.json, output, quiet=config.quiet)
    if report.ok:
        say("Task bundle successfully validated.", err=config.json == TO_OUTPUT)
    return int(not report.ok)


def _report(
    dataset: str | Path | None,
    task_dir: str | Path | None,
    chosen: Callable[[Sequence[Task]], list[Task]],
    *,
    mode: str | None = None,
    quiet: bool,
    **options: Any,
) -> ValidationReport:
    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.checks import validate_async
    from reward_kit.agent.evaluation.signals import run_in_loop

    with TaskBundle.load(dataset, task_dir=task_dir, mode=mode) as bundle, _progress(quiet=quiet) as told:
        return run_in_loop(validate_async(bundle, tasks=chosen(bundle.tasks), progress=told, **options))


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


def _show(report: ValidationReport, json_path: str | None, output: BinaryIO | None, *, quiet: bool) -> None:
    from reward_kit.agent.base.encoding import readable_json
    from reward_kit.agent.reports.validation import report_lines

    stream = sys.stderr if json_path == TO_OUTPUT else sys.stdout
    lines = report_lines(report, terminal_width(stream), only_errors=quiet)
    print_lines(lines, err=stream is sys.stderr)
    if json_path is not None:
        write_output(readable_json(report.to_json()), json_path, output)
