"""``reward-kit gate``: pass or fail an evaluation by a baseline that lies in the repository."""

from __future__ import annotations

import click

from reward_kit.agent.base.files import TO_OUTPUT, check_target, write_output
from reward_kit.agent.base.printing import print_lines, say, warn
from reward_kit.agent.base.text import count
from reward_kit.cli_commands.runs_option import runs_option


@click.command("gate")
@runs_option
@click.option("--baseline", metavar="FILE", required=True, help="The baseline's file, in the repository.")
@click.option("--eval", "name", metavar="EVAL", default="latest", help="Judge this one. Default: the latest.")
@click.option("--write-baseline", metavar="EVAL", help="Write the file from this evaluation instead.")
@click.option("--markdown", metavar="FILE", help="Write a comment for the pull request (-: to the output).")
def gate(output_dir: str, baseline: str, name: str, write_baseline: str | None, markdown: str | None) -> int:
    """Pass or fail an evaluation by a baseline that lies in the repository.

    \b
      reward-kit gate --baseline gate.json --write-baseline main
      reward-kit agent-eval -d my_task --eval-id pr --against gate.json --until-decided
      reward-kit gate --baseline gate.json --eval pr --markdown comment.md

    The exit code is 0 for better or equal (within --margin of agent-eval), 1 for worse, 3 if it cannot be
    told, and 2 after an error.
    """
    from reward_kit.agent.base.strict_json import readable_json
    from reward_kit.agent.comparison.baseline import baseline_of, load_baseline
    from reward_kit.agent.reports.gate import comment_lines, judge, verdict_lines
    from reward_kit.agent.storage.stored_evaluation import load_evaluation

    if write_baseline is not None:
        stored = load_evaluation(write_baseline, output_dir)
        made = baseline_of(stored)
        if stored.results.get("decision", {}).get("verdict", "not decided") != "not decided":
            warn("this evaluation stopped when it was decided, so its rates exaggerate; use a complete one")
        write_output([readable_json(made.to_json())], baseline)
        say(f"{baseline}: {count(len(made.rows), 'row')} of {stored.eval_id}")
        return 0
    check_target("--markdown", markdown)
    judged = judge(load_baseline(baseline, output_dir), load_evaluation(name, output_dir))
    print_lines(verdict_lines(judged), err=markdown == TO_OUTPUT)
    if markdown is not None:
        write_output(["".join(f"{line}\n" for line in comment_lines(judged)).encode()], markdown)
    return judged.exit_code
