"""``reward-kit agent-eval``: the command line of an evaluation."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
import traceback
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from click.core import ParameterSource

from reward_kit.agent.evaluation_config import DEFAULTS, GROUPS, OPTIONS, Option, UsageError
from reward_kit.errors import RewardKitError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
    evaluation = Evaluation(config, progress=_progress(config), warn=_warn)
    with _output_for_the_report(config) as output:
        try:
            result = _run_in_loop(evaluation)
        except (RewardKitError, KeyboardInterrupt):
            if evaluation.result is not None and evaluation.result.outcomes:
                click.echo(_resume_hint(evaluation), err=True)
            raise
        if result.status in ("interrupted", "budget"):
            click.echo(_resume_hint(evaluation), err=True)
        _report(result, config)
        if config.json is not None and not _write_json(result, config.json, output):
            return FAULT
        return _exit_code(result, config)


def _warn(warning: str) -> None:
    click.echo(f"warning: {warning}", err=True)


@contextmanager
def _output_for_the_report(config: EvaluationConfig) -> Iterator[BinaryIO | None]:
    """Standard output for what ``--json -`` writes; whatever else is printed goes to stderr meanwhile.

    The file descriptor moves too, so that subprocesses of tools do not write into the document either.
    """
    if config.json != "-":
        yield None
        return
    stdout = sys.stdout
    stdout.flush()
    try:
        descriptor = stdout.fileno()
        kept = os.dup(descriptor)
    except (OSError, ValueError):  # a stream in memory, as tests put there
        with redirect_stdout(sys.stderr):
            yield stdout.buffer
        return
    output = os.fdopen(kept, "wb", closefd=False)
    try:
        os.dup2(sys.stderr.fileno(), descriptor)
        with redirect_stdout(sys.stderr):
            yield output
    finally:
        with suppress(OSError):  # a failed write has been raised where it happened
            output.close()
        with suppress(OSError):
            stdout.flush()  # what was printed past the redirection
        os.dup2(kept, descriptor)
        os.close(kept)


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
        return loop.run_until_complete(evaluation.run(killed=lambda: _resume_hint(evaluation)))
    finally:
        _end_all_tasks(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _end_all_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left when an agent or tool raised KeyboardInterrupt, which ends the loop midway.

    Each task is cancelled once: the evaluation still writes its results. Those above the one that was
    interrupted pass the KeyboardInterrupt on, and it ends the loop again each time.
    """
    cancelled: set[asyncio.Task[Any]] = set()
    while tasks := asyncio.all_tasks(loop):
        for task in tasks - cancelled:
            task.cancel()
        cancelled |= tasks
        with suppress(KeyboardInterrupt):
            loop.run_until_complete(asyncio.wait(tasks))
    for task in cancelled:
        if not task.cancelled():
            task.exception()  # seen: it has been raised already


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
        from reward_kit.agent.reports.wording import count

        click.echo(f"The bundle has {count(len(report.errors), 'error')}.", err=True)
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
    """Print the report; raises ``StorageError`` where the output takes no more."""
    from rich.console import Console

    from reward_kit.agent.reports.console import print_report, scores_line

    stream: Any = sys.stderr if config.json == "-" else sys.stdout
    try:
        if config.quiet:
            click.echo(scores_line(result), file=stream)
            if result.unjudged:
                click.echo(_unjudged_line(result), err=True)
            return
        # A stream that cannot write a character shows a substitute rather than fail after all the work.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
        print_report(result, Console(file=stream, markup=False, highlight=False, emoji=False))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageError(
            f"the report cannot be printed: {error.strerror or error}", remedy=_whereabouts(result)
        ) from error


def _write_json(result: EvaluationResult, target: str, output: BinaryIO | None) -> bool:
    """Write the ``--json`` report; whether that worked."""
    from reward_kit.agent.reports.json_report import write_report

    try:
        write_report(result, target, output)
    except StorageError as error:
        fault = f"{error.place}: {error.fault}"
        click.echo(f"Error: --json is not written: {fault}. {_whereabouts(result)}", err=True)
        return False
    return True


def _whereabouts(result: EvaluationResult) -> str:
    state = "The evaluation is complete" if result.status == "complete" else "What is finished is kept"
    return f"{state}; its results are in {result.results_path}."


def _unjudged_line(result: EvaluationResult) -> str:
    from reward_kit.agent.reports.wording import count, tallied

    example = next(outcome for outcome in result.outcomes if not outcome.judged)
    number = result.unjudged.total()
    line = (
        f"{number} of {count(result.planned, 'rollout')} not judged: {tallied(result.unjudged)}; "
        f"for instance {example.row_id} #{example.index + 1}: {example.trouble}"
    )
    return " ".join(line.split())


def _resume_hint(evaluation: Evaluation) -> str:
    """How much is done, and the command that continues; also while the evaluation runs."""
    config, tally, result = evaluation.config, evaluation.tally, evaluation.result
    command = ["reward-kit", "agent-eval", "--resume", str(config.eval_id)]
    if config.output_dir != DEFAULTS["output_dir"]:
        command += ["--output-dir", str(config.output_dir)]
    line = shlex.join(command)
    if result is not None and result.status == "budget":
        line += " --max-cost USD"
    done = len(result.outcomes) if result is not None else tally.done if tally is not None else 0
    planned = result.planned if result is not None else tally.planned if tally is not None else 0
    return f"{done} of {planned} rollouts are done and kept. Continue with:\n  {line}"


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
