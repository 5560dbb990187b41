"""``reward-kit agent-eval``: the command line of an evaluation."""

from __future__ import annotations

import asyncio
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from reward_kit.agent.evaluation_config import DEFAULTS, GROUPS, OPTIONS, Option, UsageError
from reward_kit.errors import RewardKitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.evaluation import Evaluation
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.results import EvaluationResult
    from reward_kit.agent.tally import Progress

DONE, INCOMPLETE, FAULT, INTERRUPTED = 0, 1, 2, 130
EXIT_CODES = """\
Exit codes: 0 done; 1 some rollouts could not be judged or were not run, or the
score is below --fail-under; 2 a fault in the command, the bundle, the model's
set-up or the disk; 130 interrupted. What is finished is always kept."""


class _GroupedCommand(click.Command):
    """Lists its options under the headings that the configuration gives them."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                option = OPTIONS.get(parameter.name or "")
                records[option.group if option else GROUPS[-1]].append(record)
        for group, lines in records.items():
            with formatter.section(group):
                formatter.write_dl(lines, col_max=28)


def _click_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Every field of the configuration as an option."""
    for name, option in reversed(list(OPTIONS.items())):
        command = click.option(*option.flags, name, default=None, help=_help(name, option), **_kind(option))(
            command
        )
    return command


def _help(name: str, option: Option) -> str:
    default = DEFAULTS[name]
    if option.env:
        return f"{option.help} [environment: {option.env}]"
    if default is None or default == () or isinstance(default, bool):
        return option.help
    return f"{option.help} Default: {default}."


def _kind(option: Option) -> dict[str, Any]:
    """The options' values are checked where the configuration is made: click only parses."""
    if option.kind is bool:
        return {} if "/" in option.flags[0] else {"is_flag": True}
    if option.kind is dict:
        return {"multiple": True, "metavar": option.metavar}
    if option.choices:
        return {"type": click.Choice(option.choices)}
    if option.bare is not None:
        return {"is_flag": False, "flag_value": option.bare, "metavar": option.metavar}
    return {"type": option.kind, "metavar": option.metavar}


@click.command("agent-eval", cls=_GroupedCommand, epilog="\b\n" + EXIT_CODES)
@_click_options
@click.pass_context
def agent_eval(context: click.Context, /, **_: Any) -> int:
    """Evaluate an agent on a task bundle: many rollouts, judged by the bundle's reward.

    \b
      reward-kit agent-eval -d my_task/task.jsonl --model openai/gpt-4o-mini
      reward-kit agent-eval -d my_task/task.jsonl --agent gold
      reward-kit agent-eval --resume
    """
    given = given_options(context)
    try:
        return _run(given)
    except RewardKitError:
        if given.get("debug"):
            traceback.print_exc()
        raise
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        return INTERRUPTED


def given_options(context: click.Context) -> dict[str, Any]:
    """The options that were really said; for all others a resumed evaluation keeps its own."""
    return {
        name: value
        for name, value in context.params.items()
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def _run(given: dict[str, Any]) -> int:
    from reward_kit.agent.evaluation import Evaluation, make_config

    config = make_config(given)
    _check_report_path(config)
    if config.validate_only:
        return _validate(config)
    evaluation = Evaluation(config, progress=_progress(config))
    try:
        result = _run_in_loop(evaluation)
    except RewardKitError:
        if evaluation.result is not None and evaluation.result.outcomes:
            click.echo(_resume_hint(evaluation.result), err=True)
        raise
    _report(result, config)
    return _exit_code(result, config)


def _check_report_path(config: EvaluationConfig) -> None:
    """Find out before the work, not after it, that there is no such folder."""
    if config.json is None or config.json == "-":
        return
    path = Path(config.json)
    if path.is_dir() or not path.absolute().parent.is_dir():
        fault = "is a folder" if path.is_dir() else "lies in no folder"
        raise UsageError(f"--json {config.json} {fault}")


def _run_in_loop(evaluation: Evaluation) -> EvaluationResult:
    """Not ``asyncio.run``: it puts its own hand on Ctrl-C, also while the bundle loads."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(evaluation.run(handle_signals=True))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _validate(config: EvaluationConfig) -> int:
    from reward_kit.agent.bundle import TaskBundle
    from reward_kit.agent.validation import validate

    if config.dataset is None and config.task_dir is None:
        raise UsageError(
            "no dataset is given", remedy="Name one with --dataset, or a bundle's folder with --task-dir."
        )
    with TaskBundle.load(config.dataset, task_dir=config.task_dir) as bundle:
        report = asyncio.run(validate(bundle))
    for line in report.lines():
        if not config.quiet or line.startswith("error"):
            click.echo(line)
    if not report.ok:
        click.echo(f"The bundle has {len(report.errors)} errors.", err=True)
        return FAULT
    click.echo("Task bundle successfully validated.")
    return DONE


def _progress(config: EvaluationConfig) -> Progress:
    from reward_kit.agent.reports.progress import LiveProgress, PlainProgress
    from reward_kit.agent.tally import NoProgress

    if config.quiet:
        return NoProgress()
    return LiveProgress() if sys.stderr.isatty() else PlainProgress()


def _report(result: EvaluationResult, config: EvaluationConfig) -> None:
    from rich.console import Console

    from reward_kit.agent.reports.console import print_report, scores_line
    from reward_kit.agent.reports.json_report import TO_OUTPUT, write_report

    if config.json is not None:
        write_report(result, config.json)
    to_stdout = config.json != TO_OUTPUT
    if config.quiet:
        click.echo(scores_line(result), err=not to_stdout)
    else:
        # A stream that cannot write a character shows a substitute rather than fail after all the work.
        stream: Any = sys.stdout if to_stdout else sys.stderr
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
        print_report(result, Console(file=stream, markup=False, highlight=False, emoji=False))
    if result.status in ("interrupted", "budget"):
        click.echo(_resume_hint(result), err=True)


def _resume_hint(result: EvaluationResult) -> str:
    command = f"reward-kit agent-eval --resume {result.eval_id}"
    if str(result.folder) != DEFAULTS["output_dir"]:
        command += f" --output-dir {result.folder}"
    if result.status == "budget":
        command += " --max-cost USD"
    kept = f"{len(result.outcomes)} of {result.planned} rollouts are done and kept."
    return f"{kept} Continue with:\n  {command}"


def _exit_code(result: EvaluationResult, config: EvaluationConfig) -> int:
    if result.status == "interrupted":
        return INTERRUPTED
    if not result.complete:
        return INCOMPLETE
    if config.fail_under is not None:
        first = result.pass_power.get(1)
        if first is None or first.value < config.fail_under:
            click.echo(f"Pass^1 is below --fail-under {config.fail_under:g}.", err=True)
            return INCOMPLETE
    return DONE
