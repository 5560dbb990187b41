"""Evaluations from the command line: ``agent-eval`` for one agent or several models, and ``branch``."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import traceback
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click
from click.core import ParameterSource

from reward_kit.agent.base.encoding import json_bytes
from reward_kit.agent.base.files import TO_OUTPUT, check_target, write_output
from reward_kit.agent.base.printing import print_lines, say, terminal_width, warn
from reward_kit.agent.base.redaction import redact
from reward_kit.agent.base.text import count, from_here
from reward_kit.agent.config import DEFAULTS, OPTIONS, EvaluationConfig
from reward_kit.agent.scoring.numbers import tallied
from reward_kit.cli.options import GroupedCommand, add_options, all_options, command, output_for, words
from reward_kit.errors import BundleError, ModelSetupError, RewardKitError, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import Role
    from reward_kit.agent.evaluation.progress import Tally
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.store.results import EvaluationResult

DONE, INCOMPLETE, FAULT, UNDECIDED, INTERRUPTED = 0, 1, 2, 3, 130
_worst: Callable[..., int] = partial(max, key=(DONE, UNDECIDED, INCOMPLETE, FAULT, INTERRUPTED).index)
LONGEST_SLUG = 60
"""Characters of a model's name that the name of its evaluation in a sweep ends with."""
EXIT_CODES = """\
Exit codes: 0 done; 1 some rollouts could not be judged, explained or run,
none got as far as a call or a reply, or the score is below --fail-under;
2 an error in the command, the bundle, the model's set-up or the disk;
130 interrupted. With --until-decided as compare --gate: 1 worse, 3 unclear.
Finished rollouts are always kept."""


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
    if config.strict and not config.validate_only:
        raise UsageError("--strict is for --validate-only", remedy="Use reward-kit validate --strict.")
    try:
        if config.validate_only:
            from reward_kit.cli.validate import check

            return check(config)
        return _exit_code(evaluate_and_print(config), config)
    except RewardKitError:
        if config.debug:
            say(redact(traceback.format_exc(), config.secrets()), err=True)
        raise


def _sweep(given: dict[str, Any]) -> int:
    """Evaluate each model, then compare with the first; returns the worst exit code."""
    from reward_kit.agent.evaluation.options import make_config, new_name

    for name, option in OPTIONS.items():
        if option.in_sweep is not None and given.get(name):
            raise UsageError(f"{option.flag} cannot be combined with several --model", remedy=option.in_sweep)
    name = given.get("eval_id") or new_name()
    slugs = {one: re.sub(r"[^A-Za-z0-9._-]+", "-", one)[-LONGEST_SLUG:].strip("-.") for one in given["model"]}
    if len({*slugs.values()}) < len(slugs):
        slugs = {one: f"{slug}-{number}" for number, (one, slug) in enumerate(slugs.items(), 1)}
    named = [{"model": one, "eval_id": f"{name}-{slug}"} for one, slug in slugs.items()]
    configs = [make_config({**given, **one}) for one in named]
    if configs[0].validate_only:
        return run(configs[0])
    code = DONE
    done: list[str] = []
    hint = f"Continue the sweep with the same command and --eval-id {name}."
    for number, config in enumerate(configs, 1):
        if not config.quiet:
            say(f"\nModel {number} of {len(configs)}: {config.model}")
        config = replace(config, clear_cache=config.clear_cache and number == 1)
        try:
            ended = run(config)
        except ModelSetupError as error:
            say(f"Error: {error}", err=True)
            code = _worst(code, FAULT)
            continue
        except (RewardKitError, KeyboardInterrupt) as error:
            if done or isinstance(error, KeyboardInterrupt):
                say(hint, err=True)
            raise
        code = _worst(code, ended)
        if ended == INTERRUPTED:
            say(hint, err=True)
            return code
        done.append(str(config.eval_id))
    return _worst(code, _compare(done, configs[0]))


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


def given_options(context: click.Context) -> dict[str, Any]:
    """The options that were typed; for all others a resumed evaluation keeps its own."""
    return {
        name: value
        for name, value in context.params.items()
        if name in OPTIONS and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }


def evaluate_and_print(config: EvaluationConfig) -> EvaluationResult:
    """Play and judge what the options ask for, print the report, and write the file of ``--json``."""
    with output_for(config.json) as output:
        result = evaluated(config)
        _print_result(result, config)
        _write_asked(result, config, output)
    return result


def evaluated(config: EvaluationConfig, players: Mapping[Role, Any] | None = None) -> EvaluationResult:
    """Play and judge what the options ask for, with ``players`` in place of those that they name.

    A rollout of people is not continued.
    """
    server = None
    if config.workers and config.ray is None:
        from reward_kit.agent.evaluation.fork_server import ForkServer
        from reward_kit.agent.evaluation.worker import main
        from reward_kit.agent.players.participants import large_library

        # now: there is no thread and no event loop yet, and it starts beside the following imports
        server = ForkServer(large_library(config), fork=main)
    from reward_kit.agent.evaluation.progress import Display, default_progress
    from reward_kit.agent.evaluation.run import run as run_evaluation
    from reward_kit.agent.evaluation.signals import run_in_loop
    from reward_kit.agent.models.local.server import shown_on

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
        tally = display.tally
        if tally and tally.done and Path(config.output_dir, "evals", f"{tally.eval_id}.db").exists():
            say(_resume_hint(config, tally), err=True)
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
    if result.status == "interrupted":
        return INTERRUPTED
    code = _gate(result, config) if config.until_decided else DONE
    if code == DONE and not result.complete:
        return INCOMPLETE
    if result.outcomes and not any(one.steps for one in result.outcomes):
        say("No rollout got as far as a call or a reply.", err=True)
        return INCOMPLETE
    first = result.pass_power.get(1)
    if config.fail_under is not None and (first is None or first.value < config.fail_under):
        say(f"Pass^1 is below --fail-under {config.fail_under:g}.", err=True)
        return INCOMPLETE
    return code


def _gate(result: EvaluationResult, config: EvaluationConfig) -> int:
    """The exit code of ``compare --gate``; unless it is 0, what that says beside the decision is printed."""
    from reward_kit.agent.comparison import compare, gate
    from reward_kit.agent.reports.comparison import gate_lines

    verdict = gate.judge(compare.load(str(config.against), config.output_dir), result)
    print_lines([*gate_lines(verdict)][1:] if verdict.exit_code else [], err=True)
    return verdict.exit_code


# -- the output at the end


def _print_result(result: EvaluationResult, config: EvaluationConfig) -> None:
    """Print the report, or with ``--quiet`` the scores and warnings of most rollouts.

    Raises ``StorageError`` if the output fails.
    """
    from reward_kit.agent.reports.console import screen_lines
    from reward_kit.agent.reports.facts import scores_line

    to_stderr = config.json == TO_OUTPUT
    quiet = [scores_line(result), *([str(result.decision)] if result.decision is not None else [])]
    width = shutil.get_terminal_size().columns
    try:
        print_lines(quiet if config.quiet else screen_lines(result, width), err=to_stderr)
        (sys.stderr if to_stderr else sys.stdout).flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        fault = f"the report cannot be printed: {error.strerror or error}"
        raise StorageError(fault, remedy=_where_results_are(result)) from error
    if not config.quiet:
        return
    for shared in result.shared_faults:
        if shared.kind != "same_error" or not result.unjudged:
            warn(shared.text)
    if result.unjudged:
        example = next(outcome for outcome in result.outcomes if not outcome.scored)
        number = f"{result.unjudged.total()} of {count(result.planned, 'rollout')} not judged"
        instance = f"{example.row_id} #{example.index + 1}: {example.trouble}"
        line = f"{number}: {tallied(result.unjudged)}; for instance {instance}"
        say(" ".join(line.split()), err=True)
    explained = result.explanations
    if explained is not None and not explained.complete:
        why = explained.reason or next((one.problem for one in explained.made if one.problem), "not asked")
        say(f"{explained.missing or len(explained.made)} explanations are missing: {why}", err=True)


def _write_asked(result: EvaluationResult, config: EvaluationConfig, output: BinaryIO | None) -> None:
    """Write the file of ``--json`` or ``--format``; raises ``StorageError`` if it cannot be written."""
    target = config.json
    parts = _report_parts(result)
    if config.format == "tau-bench":
        from reward_kit.agent.tau.results.tau2_export import results_file

        target = target or str(result.results_path.with_suffix(".tau-bench.json"))
        parts = results_file(result, "tau-bench")
    if target is None:
        return
    try:
        write_output(parts, target, output)
    except BrokenPipeError:
        raise
    except (StorageError, OSError) as error:
        place = "standard output" if target == TO_OUTPUT else target
        why = error.fault if isinstance(error, StorageError) else error.strerror or error
        fault = f"--json is not written: {place}: {why}"
        raise StorageError(fault, remedy=_where_results_are(result)) from error
    if config.json is None and not config.quiet:
        say(f"tau-bench's layout: {target}")


def _where_results_are(result: EvaluationResult) -> str:
    state = "The evaluation is complete" if result.status == "complete" else "Finished rollouts are kept"
    return f"{state}; its results are in {from_here(result.results_path)}."


def _report_parts(result: EvaluationResult) -> Iterator[bytes]:
    """``EvaluationResult.to_json()`` in pieces, with a ``trajectory`` in each rollout.

    One trajectory is in memory at a time; null stands for one that cannot be read.
    """
    head = result.members()
    del head["rows"]
    yield json_bytes(head)[:-1] + b', "rows": ['
    for number, row in enumerate(result.rows):
        plain = row.to_json()
        del plain["rollouts"]
        yield (b",\n" if number else b"\n") + json_bytes(plain)[:-1] + b', "rollouts": ['
        for place, outcome in enumerate(row.outcomes):
            begin = (b",\n" if place else b"\n") + json_bytes(outcome.to_json())[:-1]
            yield begin + b', "trajectory": ' + _trajectory(result, outcome) + b"}"
        yield b"]}"
    yield b"]}\n"


def _trajectory(result: EvaluationResult, outcome: Outcome) -> bytes:
    try:
        with result.record(outcome) as record:
            return json_bytes(record.to_json())
    except StorageError:  # one damaged rollout must not spoil the report
        return b"null"


# -- branch

SHOWN: dict[str, str | None] = {
    "agent": "Another agent, named as for agent-eval.",
    "model": "Another model of the agent.",
    "user": "Another simulated user, named as for agent-eval.",
    "sim_model": "Another model of the simulated user.",
    "max_concurrency": "Branches that run at the same time. Default: 10.",
    "max_cost": "Start no more branches once this much is spent.",
    "output_dir": None,
    "eval_id": None,
    "json": None,
    "quiet": None,
}
"""Options of agent-eval that the help lists, with their texts if they differ."""
TAKEN = ["debug", *(name for name in OPTIONS if OPTIONS[name].scope == "evaluation")]
"""Those that it takes: a changed model or a moved bundle may need them."""


@command("branch")
@words("what", metavar="EVAL ROW#N[@STEP]", required=True)
@click.option(
    "-n", "--n-rollouts", type=click.IntRange(1), metavar="N", help="Number of branches. Default: 16."
)
@click.option(
    "--tool-result", metavar="TEXT", help="What the agent sees as the result of that step's tool call."
)
@partial(add_options, shown=SHOWN, hidden=TAKEN)
@click.pass_context
def branch(context: click.Context, /, what: str, tool_result: str | None, **options: Any) -> int:
    """Play on from a step of a rollout: why did it fail?

    \b
      reward-kit branch latest book.1#2@4
      reward-kit branch latest book.1#2@4 --model openai/gpt-4o -n 8

    Branches are rollouts of a new evaluation. Each begins with the first STEP steps of the agent as they
    were recorded, and continues with its own seed; without @STEP, before the first wrong call. Agent, user
    and models are those of the rollout unless you name others. Options of agent-eval for models and the
    bundle's place are taken as well: --model-arg, --dataset.
    """
    from reward_kit.agent.evaluation.branching import branch_config

    given = given_options(context) | {"n_rollouts": options["n_rollouts"]}
    if isinstance(given.get("model"), tuple):
        raise UsageError("branches have one --model", remedy="Run the command once for each model.")
    return run(branch_config(what, given, tool_result=tool_result))
