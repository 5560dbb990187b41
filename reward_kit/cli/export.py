"""``reward-kit export``: rollouts as training data or files, and the scores as a card."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.files import TO_OUTPUT, check_target, write_output
from reward_kit.agent.base.printing import print_lines, say, warn
from reward_kit.agent.base.text import count
from reward_kit.cli.options import command, rows_option, runs_option
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.after.export import Export
    from reward_kit.agent.store.results import EvaluationResult

RESULTS = ("tau-bench", "tau2")
"""Benchmarks whose results files are written."""
UNUSABLE = {
    "tokens": "without the tokens of all their model calls (--model-arg return_token_ids=true asks for them)",
}


@command("export")
@click.argument("evaluation", metavar="EVALUATION", required=False)
@click.argument("folder", required=False)
@runs_option
@click.option(
    "--format",
    "layout",
    type=click.Choice(["full", "openai", "trl", "tokens", "rollouts", "card", *RESULTS]),
    default="full",
    metavar="FORMAT",
    help="full, openai, trl: a JSON line for each rollout. tokens: a line for each model call, with "
    "the token ids of its server. rollouts: a file for each rollout, in the folder --out. "
    "card: one file of scores, to publish or to compare with. tau-bench, tau2: a results file of that "
    "benchmark. Default: full.",
)
@click.option("--out", "--output", metavar="FILE", help="Write to this file or folder. Default: the output.")
@click.option("--columns", metavar="NAMES", help="Only these columns, separated by commas.")
@rows_option()
@click.option("--min-reward", type=float, metavar="REWARD", help="Leave out rollouts with a lower reward.")
@click.option("--max-reward", type=float, metavar="REWARD", help="Leave out rollouts with a higher reward.")
@click.option("--unjudged", is_flag=True, help="Include rollouts without a reward; theirs is null.")
@click.option("--audit", metavar="FILE", help="Keep the JSON of validate --deep in the card.")
@click.option("--verify", metavar="FILE", help="Check a card against itself and its evaluation instead.")
def export(
    evaluation: str | None,
    folder: str | None,
    output_dir: str,
    out: str | None,
    layout: str,
    audit: str | None,
    verify: str | None,
    **chosen: Any,
) -> int:
    """Write training data, or the scores as a card.

    \b
      reward-kit export latest --format openai --min-reward 1 --out train.jsonl
      reward-kit export main --format card --out baseline.json

    EVALUATION is the name of an evaluation (latest: the last), or the path of its file. The exit code is 1 if
    there was no rollout to export or a card is wrong, and 2 after an error.
    """
    out, chosen["rows"] = out or folder, chosen.pop("task_ids")
    asked = [name for name, value in chosen.items() if value not in (None, False)]
    if layout in ("card", *RESULTS) and asked:
        raise click.UsageError(f"--{asked[0].replace('_', '-')} does not go with --format {layout}.")
    if (audit or verify) and layout != "card":
        raise click.UsageError("--audit and --verify go with --format card.")
    if verify is not None:
        return _verified(Path(verify), evaluation, output_dir)
    if evaluation is None:
        raise click.UsageError("Missing argument 'EVALUATION'.")
    if layout == "card" or layout in RESULTS:
        from reward_kit.agent.store.layout import load_evaluation

        check_target("--out", target := out or TO_OUTPUT)
        stored = load_evaluation(evaluation, output_dir)
        return _card(stored, target, audit) if layout == "card" else _results_file(stored, target, layout)
    return _rollouts(evaluation, output_dir, out, layout, **chosen)


def _rollouts(
    evaluation: str, output_dir: str, out: str | None, layout: str, columns: str | None, **chosen: Any
) -> int:
    from reward_kit.agent.after.export import export, write_lines, write_rollouts

    path = None if out in (None, TO_OUTPUT) else Path(str(out))
    as_files = layout == "rollouts"
    if as_files and (path is None or columns is not None):
        raise click.UsageError("--format rollouts takes a folder, --out DIR, and no --columns.")
    check_target("--out", None if as_files else out)
    kept: Any = "full" if as_files else layout
    found = export(evaluation, output_dir, format=kept, columns=columns, **chosen)
    if path is not None and path.resolve().parent == (found.evaluation.folder / "evals").resolve():
        raise click.UsageError(f"--out {path} is among the files of evaluations.")
    number = write_rollouts(found, path) if as_files and path is not None else write_lines(found, path)
    print_lines(_report_lines(found, number, path), err=True)
    return 0 if number else 1


def _report_lines(found: Export, number: int, path: Path | None) -> Iterator[str]:
    """The numbers of exported rollouts and of others, with the reasons."""
    rows = len({outcome.row_id for outcome in found.outcomes})
    reasons = {
        "in other rows": found.left_out.get("row", 0),
        "not run yet": found.left_out.get("not run", 0),
        "not judged (--unjudged includes them)": found.left_out.get("not judged", 0),
        "for their reward": found.left_out.get("reward", 0),
        "that cannot be read": len(found.damaged),
        UNUSABLE.get(found.layout, "in which the agent said and called nothing"): len(found.unusable),
    }
    left_out = ", ".join(f"{left} {reason}" for reason, left in reasons.items() if left)
    target = "" if path is None else f" to {path}" if number else f" (nothing was written to {path})"
    rollouts = count(len(found.outcomes) - len(found.damaged) - len(found.unusable), "rollout")
    calls = f"{count(number, 'model call')} of " if found.layout == "tokens" else ""
    exported = f"{calls}{rollouts} of {count(rows, 'row')} exported{target}"
    yield f"{exported}; left out: {left_out}" if left_out else exported
    if found.evaluation.status == "running":
        yield f"evaluation {found.evaluation.eval_id} still runs, {found.evaluation.reason}"
    if found.without_tools:
        yield (
            f"warning: there are no tools for {count(found.without_tools, 'rollout')}; "
            f"reward-kit agent-eval --resume {found.evaluation.eval_id} adds them if the bundle is the same"
        )


def _results_file(stored: EvaluationResult, target: str, layout: Any) -> int:
    from reward_kit.agent.tau.results.tau2_export import results_file

    if stored.outcomes:
        write_output(results_file(stored, layout), target)
    say(f"{count(len(stored.outcomes), 'rollout')} exported", err=True)
    return 0 if stored.outcomes else 1


def _card(stored: EvaluationResult, target: str, audit: str | None) -> int:
    from reward_kit.agent.after.rescore import was_decided
    from reward_kit.agent.base.encoding import parsed_json, readable_json
    from reward_kit.agent.comparison.card import card_of

    if was_decided(stored):
        warn("this evaluation stopped when it was decided, so its rates exaggerate; use a complete one")
    try:
        found = None if audit is None else parsed_json(Path(audit).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"is not the JSON of validate --deep: {error}", place=audit) from error
    made = card_of(stored, found)
    write_output(readable_json(made), target)
    if target != TO_OUTPUT:
        say(f"{target}: {count(len(made['rows']), 'row')}, {made['denominators']['judged']} judged rollouts")
    return 0


def _verified(path: Path, evaluation: str | None, output_dir: str) -> int:
    from reward_kit.agent.comparison.card import differences_from, faults_of, read_card
    from reward_kit.agent.store.layout import load_evaluation

    card = read_card(path)
    lines = faults_of(card)
    name = evaluation or str(card.get("evaluation"))
    try:
        stored = load_evaluation(name, output_dir)
    except UsageError as error:
        if evaluation is not None:
            raise
        warn(f"only the card itself was checked, for its evaluation is not here: {error}")
    else:
        lines += [line for line in differences_from(card, stored) if line not in lines]
    print_lines(lines)
    say(f"{path}: {count(len(lines), 'difference') if lines else 'nothing differs'}")
    return int(bool(lines))
