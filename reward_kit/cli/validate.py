"""``reward-kit validate``: check a bundle without a model."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import TYPE_CHECKING, BinaryIO

import click

from reward_kit.agent.base.files import TO_OUTPUT, check_target, write_output
from reward_kit.agent.base.printing import reserved_output, say
from reward_kit.agent.base.text import count

if TYPE_CHECKING:
    from reward_kit.agent.checks import Finding
    from reward_kit.agent.config import EvaluationConfig


@click.command()
@click.argument("bundle", required=False)
@click.option("--task-ids", metavar="IDS", help="Try only these rows: ids or positions from 0, with commas.")
@click.option("--json", "json_path", metavar="PATH", help="Write the findings as JSON; - is standard output.")
@click.option("-q", "--quiet", is_flag=True, help="Print errors only.")
@click.option("--schema", is_flag=True, help="Print the JSON schema of a row, for editors; check nothing.")
def validate(
    bundle: str | None, task_ids: str | None, json_path: str | None, quiet: bool, schema: bool
) -> int:
    """Check a bundle without a model; --deep: its tasks, too.

    The same as agent-eval --validate-only. The exit code is 0 without errors, else 2.
    """
    from reward_kit.agent.evaluation.options import make_config
    from reward_kit.agent.rows.task_row import row_schema

    if schema:
        say(json.dumps(row_schema(), indent=2))
        return 0
    if bundle is None:
        raise click.UsageError("Missing argument 'BUNDLE'.")
    given = {"dataset": bundle, "task_ids": task_ids, "json": json_path, "quiet": quiet or None}
    options = {name: value for name, value in given.items() if value is not None}
    check_target("--json", json_path)
    with reserved_output() if json_path == TO_OUTPUT else nullcontext() as output:
        return check(make_config({**options, "validate_only": True}), output)


def check(config: EvaluationConfig, output: BinaryIO | None) -> int:
    """Check the rows that the options choose, and print the findings; returns the exit code."""
    from reward_kit.agent.base.encoding import json_bytes
    from reward_kit.agent.checks import validate
    from reward_kit.agent.evaluation.run import read_rows
    from reward_kit.agent.evaluation.schedule import chosen_tasks
    from reward_kit.agent.evaluation.signals import run_in_loop

    def show(finding: Finding) -> None:
        if not config.quiet or finding.level == "error":
            say(str(finding))

    with read_rows(config) as rows, rows.open() as bundle:
        tasks = chosen_tasks(bundle.tasks, config)
        report = run_in_loop(validate(bundle, tasks=tasks, strict=config.strict, tell=show))
    if config.json is not None:
        write_output([json_bytes(report.to_json()) + b"\n"], config.json, output)
    if not report.ok:
        say(f"The bundle has {count(len(report.errors), 'error')}.", err=True)
        return 2
    say("Task bundle successfully validated.")
    return 0
