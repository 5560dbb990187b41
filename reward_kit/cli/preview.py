"""``reward-kit preview``: try an evaluator on a few samples; and ``deploy``, which reports its removal."""

from __future__ import annotations

import argparse
import json
from typing import Any

import click

from reward_kit.agent.base.places import fault_line
from reward_kit.agent.base.printing import say
from reward_kit.compat.evaluation import Evaluator, Sample, create_evaluation, read_samples
from reward_kit.errors import RewardKitError

FOLDER_FLAGS = ("-m", "--metrics-folders")


class _FolderListCommand(click.Command):
    """A command whose ``-m`` may name several folders at once: ``-m a=./a b=./b``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the flag before each further folder, as click expects."""
        repeated: list[str] = []
        in_list = False
        for position, arg in enumerate(args):
            if arg.startswith("-"):
                in_list = False
            elif in_list:
                repeated.append(FOLDER_FLAGS[0])
            elif position and args[position - 1] in FOLDER_FLAGS:
                in_list = True
            repeated.append(arg)
        return super().parse_args(ctx, repeated)


_folders_option = click.option(
    *FOLDER_FLAGS,
    "metrics_folders",
    multiple=True,
    metavar="NAME=PATH...",
    callback=lambda _context, _option, folders: list(folders) or None,
    help="Metric folders, each with a main.py that has an evaluate function.",
)


@click.command(cls=_FolderListCommand)
@_folders_option
@click.option("--samples", "-s", metavar="FILE", help="JSONL file of samples with 'messages'.")
@click.option("--max-samples", type=click.IntRange(1), default=5, show_default=True, help="Samples to judge.")
@click.option("--huggingface-dataset", "--hf", metavar="NAME", help="Take the samples from this data set.")
@click.option("--huggingface-split", default="train", show_default=True, help="Split of the data set.")
@click.option("--huggingface-prompt-key", default="prompt", show_default=True, help="Column of the prompt.")
@click.option(
    "--huggingface-response-key", default="response", show_default=True, help="Column of the response."
)
@click.option(
    "--huggingface-key-map", metavar="JSON", help='Other names for columns: {"column": "argument"}.'
)
@click.option(
    "--remote-url", metavar="URL", help="Ask the reward server at this address instead of a folder."
)
def preview(**options: Any) -> int:
    """Try an evaluator on a few samples.

    Runs `evaluate` of each metric folder here, or asks a running reward server (--remote-url). The exit code
    is 1 if a sample could not be judged.
    """
    try:
        return _preview(argparse.Namespace(**options))
    except (ValueError, ImportError, OSError) as error:
        raise RewardKitError(str(error)) from error
    except RecursionError as error:
        raise RewardKitError(f"{options['samples']} is nested too deeply") from error
    except SystemExit as error:
        raise RewardKitError(f"an evaluator raised {fault_line(error)}") from error


def preview_command(args: argparse.Namespace) -> int:
    """Run ``preview`` with what ``reward_kit.cli.parse_args`` returned; prints a fault and returns 1."""
    try:
        return _preview(args)
    except (ValueError, ImportError, RewardKitError) as error:
        say(f"Error: {error}", err=True)
        return 1


@click.command(
    cls=_FolderListCommand, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
@click.option("--id", required=True)
@_folders_option
@click.option("--display-name")
@click.option("--description")
@click.option("--force", "-f", is_flag=True)
@click.option("--remote-url")
def deploy(**options: Any) -> None:
    """Not part of this package: evaluators are deployed by the platform's own tools.

    Reads the options of earlier releases, so that scripts get this answer.
    """
    create_evaluation(**options)


def deploy_command(args: argparse.Namespace) -> int:
    """Print the error of ``deploy`` and return 1."""
    try:
        create_evaluation(args)
    except RewardKitError as error:
        say(f"Error: {error}", err=True)
    return 1


def _preview(args: argparse.Namespace) -> int:
    if not args.remote_url and not args.metrics_folders:
        remedy = "Give --metrics-folders NAME=PATH or --remote-url URL."
        raise RewardKitError("nothing to preview", remedy=remedy)
    if not args.samples and not args.huggingface_dataset:
        raise RewardKitError("no samples", remedy="Give --samples FILE or --huggingface-dataset NAME.")
    try:
        key_map = json.loads(args.huggingface_key_map or "null")
    except json.JSONDecodeError as error:
        raise RewardKitError(f"--huggingface-key-map is not JSON: {error}") from error
    if args.huggingface_key_map and not isinstance(key_map, dict):
        raise RewardKitError("--huggingface-key-map is not a JSON object")
    evaluator = Evaluator()
    if not args.remote_url:
        evaluator.load_metric_folders(args.metrics_folders)
    elif not args.remote_url.startswith(("http://", "https://")):
        raise RewardKitError(f"--remote-url {args.remote_url} does not start with http:// or https://")
    columns = args.huggingface_split, args.huggingface_prompt_key, args.huggingface_response_key
    samples = read_samples(args.samples, args.huggingface_dataset, args.max_samples, *columns, key_map)
    if not args.remote_url:
        result = evaluator.preview_samples(samples)
        result.display()
        return 0 if all(sample.success for sample in result.results) else 1
    failed = 0
    for number, sample in enumerate(samples, start=1):
        say(f"\n--- Sample {number} ---")
        failed += not _show_remote_result(f"{args.remote_url.rstrip('/')}/evaluate", sample)
        say("--- End Sample ---")
    return int(failed > 0)


def _show_remote_result(endpoint: str, sample: Sample) -> bool:
    """Print the answer of the server at ``endpoint``; returns False if there is none."""
    import requests

    from reward_kit.models import EvaluateResult

    given = {name: sample.get(name) for name in ("messages", "ground_truth")}
    others = {name: value for name, value in sample.items() if name not in given}
    try:
        response = requests.post(endpoint, json={**given, "kwargs": others}, timeout=600)
        response.raise_for_status()
        result = EvaluateResult.model_validate(response.json())
    except (requests.RequestException, ValueError) as error:
        say(f"  Error: {endpoint}: {error}")
        return False
    say(f"  Score: {result.score}\n  Reason: {result.reason or 'N/A'}\n  Is Valid: {result.is_score_valid}")
    for name, metric in result.metrics.items():
        say(f"  Metric '{name}': Score={metric.score}, Valid={metric.is_score_valid}, Reason={metric.reason}")
    return True
