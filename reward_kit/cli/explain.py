"""``reward-kit explain``: a model's judgement of every failed rollout."""

from __future__ import annotations

import shutil
from typing import Any

import click

from reward_kit.cli.common_options import command, file_option, print_report, runs_option


@command("explain")
@click.argument("evaluation", metavar="EVALUATION")
@runs_option
@click.option("--model", metavar="NAME", required=True, help="The model that judges, as LiteLLM names it.")
@click.option("--max-cost", type=click.FloatRange(min=0), metavar="USD", help="Ask no more once it is spent.")
@click.option(
    "--max-concurrency", type=click.IntRange(min=1), default=10, help="Rollouts at a time. Default: 10."
)
@file_option("--json", help="Write the judgements as JSON.")
def explain(evaluation: str, json_path: str | None, **options: Any) -> int:
    """Ask a model who was at fault in each failed rollout.

    EVALUATION is the name of an evaluation (latest: the last), or the path of its file. The answers are
    stored with it; show and view have them. Rollouts that this model has judged before are not judged again.
    The exit code is 1 if a judgement is missing, and 2 after an error.
    """
    from reward_kit.agent.after.explainer import explain_async
    from reward_kit.agent.evaluation.signals import run_in_loop
    from reward_kit.agent.reports.facts import explanation_facts
    from reward_kit.agent.reports.tables import fact_lines

    explained = run_in_loop(explain_async(evaluation, **options)).explanations
    assert explained is not None, "it was just made"
    lines = fact_lines(explanation_facts(explained), shutil.get_terminal_size().columns)
    print_report(lines, explained.to_json, json_path)
    return int(not explained.complete)
