"""``reward-kit compare``: is an evaluation better than another one, and is it noise?"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.files import TO_OUTPUT, write_output
from reward_kit.agent.base.printing import print_lines, terminal_width
from reward_kit.cli.common_options import command, file_option, print_report, runs_option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


@command("compare")
@click.argument("evaluations", metavar="A [B]...", nargs=-1)
@runs_option
@click.option(
    "--gate", is_flag=True, help="Judge B (default: latest) by A: exit 0, 1 (worse) or 3 (unclear)."
)
@click.option(
    "--margin",
    type=click.FloatRange(0, 100),
    metavar="POINTS",
    help="With --gate: a difference that does not matter. Default: that of the evaluation, 5.",
)
@file_option("--json", help="Write numbers and all rows as JSON.")
@file_option("--markdown", help="Write a table to share and the verdicts; with --gate, a comment.")
@click.option("--changed-rows", is_flag=True, help="Also compare rows whose fields or seed have changed.")
@click.option("--fail-if-worse", is_flag=True, hidden=True)
@click.option("--baseline", hidden=True)
@click.option("--eval", "judged", hidden=True)
def compare(
    evaluations: tuple[str, ...],
    gate: bool,
    margin: float | None,
    baseline: str | None,
    judged: str | None,
    json_path: str | None,
    markdown_path: str | None,
    fail_if_worse: bool,
    **options: Any,
) -> int:
    """Compare evaluations: which is better, or is it noise?

    \b
      reward-kit compare main candidate
      reward-kit compare baseline.json latest --gate --markdown comment.md

    A, B … are names of evaluations (latest: the last), or paths of their files or cards. Each is compared
    with A; branches, which may be named alone, with the rollout that they continue from. A difference has two
    95 % intervals: for these tasks, where only the rollouts are random, and for tasks like these, where the
    rows are a sample as well.

    With --gate, the exit code is 0 for better or equal (within the margin), 1 for worse, 3 if it cannot be
    told. An evaluation card in the repository serves as the baseline: export A --format card --out FILE.
    """
    from reward_kit.agent.comparison import compare as comparing
    from reward_kit.agent.reports.comparison import baseline_lines, comparison_lines, markdown_lines

    names = [name for name in (baseline, *evaluations, judged) if name is not None]
    if gate:
        if len(names) > 2 or not names or options["changed_rows"]:
            raise click.UsageError("--gate takes the baseline and one evaluation.")
        return _gate([*names, "latest"][:2], options["output_dir"], margin, json_path, markdown_path)
    first, *others = names or [""]
    if not others:
        others, first = [first], _origin(first, options["output_dir"])
    if margin is not None:
        raise click.UsageError("--margin goes with --gate.")
    if len(others) == 1:
        several = [comparing.compare(first, *others, **options)]
    else:
        found = comparing.compare_with(first, others, **options)
        several = [*found.comparisons]
    width = terminal_width(sys.stderr if TO_OUTPUT in (json_path, markdown_path) else sys.stdout)
    if len(several) == 1:
        to_json, lines = several[0].to_json, comparison_lines(several[0], width)
    else:
        to_json, lines = found.to_json, baseline_lines(found, width)
    shown = [] if markdown_path == TO_OUTPUT else lines
    _print(shown, to_json, json_path, markdown_lines(several), markdown_path)
    return int(fail_if_worse and any(one.success.verdicts.these_tasks == "worse" for one in several))


compare.renamed = {"--write-baseline": "reward-kit export EVALUATION --format card --out FILE"}


def _origin(name: str, output_dir: str) -> str:
    """The file of the evaluation whose rollout those of ``name`` are branches of."""
    from reward_kit.agent.comparison.compare import load
    from reward_kit.agent.store.stored_evaluation import origin_of

    if name:
        stored = load(name, output_dir)
        if (origin := origin_of(stored.configuration.get("branch_of"))) is not None:
            return str(origin.file(stored.path.parent))
    raise click.UsageError("Name the evaluations to compare: two or more.")


def _gate(
    names: list[str], output_dir: str, margin: float | None, json_path: str | None, markdown_path: str | None
) -> int:
    from reward_kit.agent.comparison.compare import load
    from reward_kit.agent.comparison.gate import judge
    from reward_kit.agent.reports.gate import comment_lines, verdict_lines

    judged = judge(*(load(name, output_dir) for name in names), margin=margin)
    _print(verdict_lines(judged), judged.to_json, json_path, comment_lines(judged), markdown_path)
    return judged.exit_code


def _print(
    lines: Iterable[str],
    to_json: Callable[[], Any],
    json_path: str | None,
    markdown: Iterable[str],
    markdown_path: str | None,
) -> None:
    """Print the report, or to the output what a file option asks for, and the report to stderr."""
    if markdown_path == TO_OUTPUT:
        print_report([], to_json, json_path)
        print_lines(lines, err=True)
    else:
        print_report(lines, to_json, json_path)
    if markdown_path is not None:
        write_output(["".join(f"{line}\n" for line in markdown).encode()], markdown_path)
