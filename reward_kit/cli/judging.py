"""Judgements of stored rollouts: ``rescore`` by a changed reward, and ``explain`` by a model."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.places import shown_line
from reward_kit.agent.base.printing import warn
from reward_kit.agent.base.text import count, from_here
from reward_kit.agent.scoring.numbers import score
from reward_kit.cli.options import Range, command, evaluation_argument, file_option, print_report, runs_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.after.rescore import Rejudged, Rescoring

SHOWN = 40
LIMIT = Range(min=0, min_open=True)


@command("rescore")
@evaluation_argument
@runs_option
@click.option("-d", "--dataset", metavar="PATH", help="The rows and reward. Default: those evaluated.")
@click.option("--task-dir", metavar="DIR", help="The bundle's folder, if the dataset lies elsewhere.")
@click.option("--eval-id", metavar="NAME", help="Also write the results as an evaluation of this name.")
@file_option("--json", help="Write both rewards of every rollout as JSON.")
@click.option("--timeout", type=LIMIT, metavar="SECONDS", help="Time for one reward. Default: 300.")
def rescore(evaluation: str, json_path: str | None, **options: Any) -> int:
    """Judge stored rollouts again by a changed reward.

    EVALUATION is the name of an evaluation (latest: the last), or the path of its file. The bundle's reward
    as it is now gets the stored databases and messages. No agent or user is asked and no tool is run; the old
    evaluation stays as it is. The exit code is 1 if a rollout could not be judged, and 2 after an error.
    """
    from reward_kit.agent.after.rescore import rescore_async
    from reward_kit.agent.evaluation.signals import run_in_loop

    given = {name: value for name, value in options.items() if value is not None}
    done = run_in_loop(rescore_async(evaluation, **given, warn=warn))
    print_report(_report_lines(done), done.to_json, json_path)
    return int(bool(done.failed))


def _report_lines(done: Rescoring) -> Iterator[str]:
    from reward_kit.agent.scoring.metrics import LEADERBOARD_KS

    judged = sum(one.now.scored for one in done.rollouts)
    of = f"{judged} of " if judged < len(done.rollouts) else ""
    yield f"{done.stored.eval_id}: {of}{count(len(done.rollouts), 'rollout')} judged again"
    yield f"{'':8}{'before':>8}{'now':>8}"
    before, now = done.before, done.now
    lines = [(f"Pass^{k}", before.pass_power.get(k), now.pass_power.get(k)) for k in LEADERBOARD_KS]
    for name, *both in [*lines, ("reward", before.averages.reward, now.averages.reward)]:
        if any(both) or name == "reward":
            was, is_now = (score(one.value if one else None) for one in both)
            yield f"{name:8}{was:>8}{is_now:>8}"
    changed = [rollout for rollout in done.changed if not rollout.failed]
    yield f"{count(len(changed), 'reward')} changed{':' if changed else ''}"
    yield from _rollout_lines(changed)
    if done.failed:
        yield f"{count(len(done.failed), 'rollout')} could not be judged:"
        yield from _rollout_lines(done.failed)
    if done.written is not None:
        yield f"results   {from_here(done.written.results_path)}"


def _rollout_lines(rollouts: list[Rejudged]) -> Iterator[str]:
    for rollout in rollouts[:SHOWN]:
        place = f"  {rollout.now.row_id} #{rollout.now.index + 1}"
        both = (rollout.before.reward, rollout.now.reward)
        was, is_now = ("none" if reward is None else f"{reward:g}" for reward in both)
        yield f"{place}: {was} -> {is_now}  {shown_line(rollout.reason, 160)}".rstrip()
    if len(rollouts) > SHOWN:
        yield f"  and {len(rollouts) - SHOWN} more"


@command("explain")
@evaluation_argument
@runs_option
@click.option("--model", metavar="NAME", required=True, help="The model that judges, as LiteLLM names it.")
@click.option(
    "--model-arg", "model_args", multiple=True, metavar="KEY=VALUE", help="A setting of it; see agent-eval."
)
@click.option("--max-cost", type=Range(min=0), metavar="USD", help="Ask no more once it is spent.")
@click.option("--max-concurrency", type=click.IntRange(1), default=10, help="Rollouts at once. Default: 10.")
@file_option("--json", help="Write the judgements as JSON.")
def explain(evaluation: str, json_path: str | None, **options: Any) -> int:
    """Ask a model who was at fault in each failed rollout.

    EVALUATION is the name of an evaluation (latest: the last), or the path of its file. The answers are
    stored with it; show and view have them. Rollouts that this model has judged before are not judged again.
    The exit code is 1 if a judgement is missing, and 2 after an error.
    """
    from reward_kit.agent.after.explainer import explain_async
    from reward_kit.agent.base.printing import fact_lines
    from reward_kit.agent.evaluation.signals import run_in_loop
    from reward_kit.agent.reports.facts import explanation_facts

    explained = run_in_loop(explain_async(evaluation, **options)).explanations
    assert explained is not None, "it was just made"
    lines = fact_lines(explanation_facts(explained), shutil.get_terminal_size().columns)
    print_report(lines, explained.to_json, json_path)
    return int(not explained.complete)
