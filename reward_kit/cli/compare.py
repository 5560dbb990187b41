"""``reward-kit compare`` and ``gate``: is an evaluation better than another one, or than a baseline?"""

from __future__ import annotations

import sys
from typing import Any

import click

from reward_kit.agent.base.files import TO_OUTPUT, write_output
from reward_kit.agent.base.printing import print_lines, say, terminal_width, warn
from reward_kit.agent.base.text import count
from reward_kit.cli.common_options import file_option, print_report, runs_option


@click.command()
@click.argument("evaluations", metavar="A B [C]...", nargs=-1)
@runs_option
@click.option("--baseline", metavar="NAME", help="Compare all others with this one instead of the first.")
@file_option("--json", metavar="PATH", help="Write numbers and all rows to a file (-: to the output).")
@click.option("--markdown", is_flag=True, help="Print only a table to share and the verdicts, as Markdown.")
@click.option("--changed-rows", is_flag=True, help="Also compare rows whose fields or seed have changed.")
@click.option("--fail-if-worse", is_flag=True, help="Exit with 1 if B is worse on these tasks.")
def compare(
    evaluations: tuple[str, ...],
    baseline: str | None,
    json_path: str | None,
    markdown: bool,
    fail_if_worse: bool,
    **options: Any,
) -> int:
    """Compare evaluations, row by row: which is better, and is it noise?

    A, B … are names of evaluations (latest: the last), or paths of their logs, results or cards. Each is
    compared with A. Each difference has two 95 % intervals: for these tasks, where only the rollouts are
    random, and for tasks like these, where the rows are a sample as well. The exit code is 2 after an error.
    """
    from reward_kit.agent.comparison import compare as comparing
    from reward_kit.agent.reports.comparison import baseline_lines, comparison_lines, markdown_lines

    first, *others = [*evaluations] if baseline is None else [baseline, *evaluations]
    if not others:
        raise click.UsageError("Name the evaluations to compare: two or more.")
    if len(others) == 1:
        several = [comparing.compare(first, *others, **options)]
    else:
        found = comparing.compare_with(first, others, **options)
        several = [*found.comparisons]
    if len(several) == 1:
        to_json, lines = several[0].to_json, comparison_lines(several[0])
    else:
        stream = sys.stderr if json_path == TO_OUTPUT else sys.stdout
        to_json, lines = found.to_json, baseline_lines(found, terminal_width(stream))
    print_report(markdown_lines(several) if markdown else lines, to_json, json_path)
    return int(fail_if_worse and any(one.success.verdicts.these_tasks == "worse" for one in several))


@click.command()
@runs_option
@click.option("--baseline", metavar="FILE", required=True, help="The baseline's file, in the repository.")
@click.option("--eval", "name", metavar="EVAL", default="latest", help="Judge this one. Default: the latest.")
@click.option("--write-baseline", metavar="EVAL", help="Write the file from this evaluation instead.")
@file_option("--markdown", help="Write a comment for the pull request (-: to the output).")
def gate(
    output_dir: str, baseline: str, name: str, write_baseline: str | None, markdown_path: str | None
) -> int:
    """Pass or fail an evaluation by a baseline that lies in the repository.

    \b
      reward-kit gate --baseline gate.json --write-baseline main
      reward-kit agent-eval -d my_task --eval-id pr --against gate.json --until-decided
      reward-kit gate --baseline gate.json --eval pr --markdown comment.md

    The exit code is 0 for better or equal (within --margin of agent-eval), 1 for worse, 3 if it cannot be
    told, and 2 after an error.
    """
    from reward_kit.agent.base.encoding import readable_json
    from reward_kit.agent.comparison.baseline import baseline_of, load_baseline
    from reward_kit.agent.reports.gate import comment_lines, judge, verdict_lines
    from reward_kit.agent.store.stored_evaluation import load_evaluation

    if write_baseline is not None:
        stored = load_evaluation(write_baseline, output_dir)
        made = baseline_of(stored)
        if stored.results.get("decision", {}).get("verdict", "not decided") != "not decided":
            warn("this evaluation stopped when it was decided, so its rates exaggerate; use a complete one")
        write_output(readable_json(made.to_json()), baseline)
        say(f"{baseline}: {count(len(made.rows), 'row')} of {stored.eval_id}")
        return 0
    judged = judge(load_baseline(baseline, output_dir), load_evaluation(name, output_dir))
    print_lines(verdict_lines(judged), err=markdown_path == TO_OUTPUT)
    if markdown_path is not None:
        write_output(["".join(f"{line}\n" for line in comment_lines(judged)).encode()], markdown_path)
    return judged.exit_code
