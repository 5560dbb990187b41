"""``reward-kit export``: the rollouts of an evaluation as training data, or as files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.files import TO_OUTPUT
from reward_kit.agent.base.printing import print_lines
from reward_kit.agent.base.text import count
from reward_kit.cli.common_options import file_option, runs_option

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.after.export import Export


@click.command("export")
@click.argument("evaluation", metavar="EVALUATION")
@runs_option
@click.argument("folder", metavar="[DIR]", required=False)
@file_option("--out", help="Write the lines to this file. Default: the output.")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["full", "openai", "trl", "rollouts"]),
    default="full",
    help="Format of the messages and columns; rollouts writes a roll_ID.json each to DIR. Default: full.",
)
@click.option("--columns", metavar="NAMES", help="Only these columns, separated by commas.")
@click.option("--rows", metavar="IDS", help="Only these rows, separated by commas.")
@click.option("--min-reward", type=float, metavar="REWARD", help="Leave out rollouts with a lower reward.")
@click.option("--max-reward", type=float, metavar="REWARD", help="Leave out rollouts with a higher reward.")
@click.option(
    "--unjudged", is_flag=True, help="Include rollouts that could not be judged; their reward is null."
)
def export(
    evaluation: str,
    folder: str | None,
    output_dir: str,
    out_path: str | None,
    layout: str,
    columns: str | None,
    **options: Any,
) -> int:
    """Export the rollouts of an evaluation as training data: JSON lines.

    EVALUATION is the name of an evaluation (latest: the last), or the path of its file. Each line has
    the conversation, the tools and the reward of a rollout. With --format rollouts DIR, each rollout
    is written whole to a file in DIR instead. The exit code is 1 if there was none to export, and 2 after
    an error.
    """
    from reward_kit.agent.after.export import export as chosen
    from reward_kit.agent.after.export import write_lines, write_rollouts

    as_files = layout == "rollouts"
    if as_files != (folder is not None):
        raise click.UsageError("--format rollouts takes a folder DIR, other formats do not")
    if as_files and (out_path is not None or columns is not None):
        raise click.UsageError("--format rollouts cannot be combined with --out or --columns")
    found = chosen(
        evaluation,
        output_dir,
        format="full" if as_files else layout,  # type: ignore[arg-type]  # one of FORMATS
        columns=columns,
        **options,
    )
    path = None if out_path in (None, TO_OUTPUT) else Path(str(out_path))
    if path is not None and path.resolve().parent == (found.evaluation.folder / "evals").resolve():
        raise click.UsageError(f"--out {path} is among the files of evaluations")
    if folder is not None:
        path = Path(folder)
        number = write_rollouts(found, path)
    else:
        number = write_lines(found, path)
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
        "in which the agent said and called nothing": len(found.outcomes) - len(found.damaged) - number,
    }
    left_out = ", ".join(f"{left} {reason}" for reason, left in reasons.items() if left)
    target = f" to {path}" if path is not None else ""
    exported = f"{count(number, 'rollout')} of {count(rows, 'row')} exported{target}"
    yield f"{exported}; left out: {left_out}" if left_out else exported
    if found.evaluation.status == "running":
        yield f"evaluation {found.evaluation.eval_id} still runs, {found.evaluation.reason}"
    if found.without_tools:
        yield (
            f"warning: there are no tools for {count(found.without_tools, 'rollout')}; "
            f"reward-kit agent-eval --resume {found.evaluation.eval_id} adds them if the bundle is the same"
        )
