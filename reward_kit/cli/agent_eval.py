"""``reward-kit agent-eval``: evaluate an agent, or several models one after the other."""

from __future__ import annotations

import re
import shlex
import sys
import traceback
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from click.core import ParameterSource

from reward_kit.agent.base.files import TO_OUTPUT, check_target
from reward_kit.agent.base.printing import print_lines, reserved_output, say, terminal_width, warn
from reward_kit.agent.base.redaction import redact
from reward_kit.agent.config import DEFAULTS, OPTIONS, EvaluationConfig
from reward_kit.cli.eval_options import GroupedCommand, all_options
from reward_kit.cli.report_output import print_result, write_asked
from reward_kit.errors import BundleError, ModelSetupError, RewardKitError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.base.types import Role
    from reward_kit.agent.evaluation.progress import Tally
    from reward_kit.agent.store.results import EvaluationResult

DONE, INCOMPLETE, FAULT, INTERRUPTED = 0, 1, 2, 130
LONGEST_SLUG = 60
"""Characters of a model's name that the name of its evaluation in a sweep ends with."""
EXIT_CODES = """\
Exit codes: 0 done; 1 some rollouts could not be judged, explained or run,
none got as far as a call or a reply, or the score is below --fail-under;
2 an error in the command, the bundle, the model's set-up or the disk;
130 interrupted. Finished rollouts are always kept."""


@click.command("agent-eval", cls=GroupedCommand, epilog="\b\n" + EXIT_CODES)
@click.argument("bundle", required=False)
@all_options
@click.pass_context
def agent_eval(context: click.Context, /, bundle: str | None, **_: Any) -> int:
    """Evaluate an agent on a bundle.

    \b
      reward-kit agent-eval my_task --model openai/gpt-4o-mini
      reward-kit agent-eval my_task --agent gold
      reward-kit agent-eval --resume
    """
    from reward_kit.agent.evaluation.options import make_config

    given = given_options(context)
    if bundle is not None and given.setdefault("dataset", bundle) != bundle:
        raise click.UsageError("Name the bundle once: BUNDLE or --dataset PATH.")
    return _sweep(given) if isinstance(given.get("model"), tuple) else run(make_config(given))


def run(config: EvaluationConfig) -> int:
    """Run the evaluation or the validation that the options ask for; returns the exit code."""
    check_target("--json", config.json)
    try:
        with reserved_output() if config.json == TO_OUTPUT else nullcontext() as output:
            if config.validate_only:
                from reward_kit.cli.validate import check

                return check(config, output)
            return _evaluate(config, output)
    except RewardKitError:
        if config.debug:
            say(redact(traceback.format_exc(), config.secrets()), err=True)
        raise


def _sweep(given: dict[str, Any]) -> int:
    """Evaluate each model, then compare with the first; returns the highest exit code."""
    from reward_kit.agent.evaluation.options import make_config, new_name

    for name, option in OPTIONS.items():
        if option.in_sweep is not None and given.get(name):
            fault = f"{option.flag} cannot be combined with several --model"
            raise UsageError(fault, remedy=option.in_sweep)
    name, models = given.get("eval_id") or new_name(), given["model"]
    configs = [make_config({**given, "model": one, "eval_id": f"{name}-{_slug(one)}"}) for one in models]
    if configs[0].validate_only:
        return run(configs[0])
    code = DONE
    done: list[str] = []
    hint = f"Continue the sweep with the same command and --eval-id {name}."
    for number, config in enumerate(configs, 1):
        if not config.quiet:
            say(f"\nModel {number} of {len(models)}: {config.model}")
        config = replace(config, clear_cache=config.clear_cache and number == 1)
        try:
            ended = run(config)
        except ModelSetupError as error:
            say(f"Error: {error}", err=True)
            code = max(code, FAULT)
            continue
        except (RewardKitError, KeyboardInterrupt) as error:
            if done or isinstance(error, KeyboardInterrupt):
                say(hint, err=True)
            raise
        code = max(code, ended)
        if ended == INTERRUPTED:
            say(hint, err=True)
            return code
        done.append(str(config.eval_id))
    return max(code, _compare(done, configs[0]))


def _compare(done: Sequence[str], config: EvaluationConfig) -> int:
    """Print the evaluations of a sweep beside the first; returns an exit code."""
    from reward_kit.agent.comparison.compare import compare
    from reward_kit.agent.reports.comparison import sweep_lines

    compared, code = [], DONE
    for other in done[1:]:
        try:
            compared.append(compare(done[0], other, output_dir=config.output_dir))
        except UsageError as error:
            say(f"not compared: {error}", err=True)
            code = INCOMPLETE
    if compared:
        print_lines(["", *sweep_lines(compared, terminal_width(sys.stdout))], err=False)
    return code


def _slug(model: str) -> str:
    """A model's name as the end of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model)[-LONGEST_SLUG:].strip("-.")


def given_options(context: click.Context) -> dict[str, Any]:
    """The options that were typed; for all others a resumed evaluation keeps its own."""
    return {
        name: value
        for name, value in context.params.items()
        if name in OPTIONS and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def _evaluate(config: EvaluationConfig, output: BinaryIO | None) -> int:
    result = evaluated(config)
    print_result(result, config)
    write_asked(result, config, output)
    return _exit_code(result, config)


def evaluated(config: EvaluationConfig, players: Mapping[Role, Any] | None = None) -> EvaluationResult:
    """Play and judge what the options ask for, with ``players`` in place of those that they name.

    A rollout of people is not continued.
    """
    from reward_kit.agent.evaluation.progress import Display, default_progress
    from reward_kit.agent.evaluation.run import run as run_evaluation
    from reward_kit.agent.evaluation.signals import run_in_loop
    from reward_kit.agent.models.local.server import shown_on

    server = None
    if config.workers and config.ray is None:
        from reward_kit.agent.evaluation.connection import ForkServer
        from reward_kit.agent.evaluation.worker import main
        from reward_kit.agent.players.participants import needs_litellm

        # now: there is no thread and no event loop yet
        server = ForkServer(fork=main, litellm=needs_litellm(config))
    display = Display(None if config.quiet else default_progress(), warn)
    try:
        with nullcontext() if config.quiet else shown_on(sys.stderr):
            running = run_evaluation(
                config,
                display,
                players=players,
                server=server,
                last_words=lambda: "" if players else _resume_hint(config, display.tally),
            )
            result = run_in_loop(running)
    except (RewardKitError, KeyboardInterrupt):
        if display.tally is not None and display.tally.done:
            say(_resume_hint(config, display.tally), err=True)
        raise
    except SystemExit as error:
        raise BundleError(
            f"code of the bundle or of the agent called sys.exit({error.code!r})",
            remedy="Continue with --resume; with --workers 1 such a call costs its own rollout only.",
        ) from error
    if result.status in ("interrupted", "budget") and not players:
        say(_resume_hint(config, display.tally, result), err=True)
    return result


def _resume_hint(
    config: EvaluationConfig, tally: Tally | None, result: EvaluationResult | None = None
) -> str:
    """The number of finished rollouts and the command that continues; also valid during the run."""
    assert tally is not None, "rollouts run"
    command = ["reward-kit", "agent-eval", "--resume", tally.eval_id]
    if config.output_dir != DEFAULTS["output_dir"]:
        command += ["--output-dir", str(config.output_dir)]
    line, why = shlex.join(command), ""
    if result is not None and result.status == "budget":
        line += " --max-tokens N" if "--max-tokens" in (result.reason or "") else " --max-cost USD"
        why = f"{result.reason}. " if config.quiet else ""
    return f"{why}{tally.done} of {tally.planned} rollouts are done and saved. Continue with:\n  {line}"


def _exit_code(result: EvaluationResult, config: EvaluationConfig) -> int:
    from reward_kit.agent.store.results import has_begun

    if result.status == "interrupted":
        return INTERRUPTED
    if not result.complete:
        return INCOMPLETE
    if not has_begun(result.outcomes):
        say("No rollout got as far as a call or a reply.", err=True)
        return INCOMPLETE
    if config.fail_under is not None:
        first = result.pass_power.get(1)
        if first is None or first.value < config.fail_under:
            say(f"Pass^1 is below --fail-under {config.fail_under:g}.", err=True)
            return INCOMPLETE
    return DONE
