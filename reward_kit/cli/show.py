"""``reward-kit show``: evaluations and rollouts to read in the terminal."""

from __future__ import annotations

import json
import shutil
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reward_kit.agent.base.printing import print_lines, terminal_width
from reward_kit.cli.common_options import check_runs_folder, command, runs_option
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from reward_kit.agent.store.results import EvaluationResult


@command("show")
@click.argument("what", metavar="[WHAT]", required=False)
@runs_option
@click.option(
    "--by",
    "field",
    metavar="FIELD",
    help="Print scores by groups of rows instead: those with the same value of a field (metadata.domain).",
)
@click.option(
    "--as-row", "row_id", metavar="ID", help="Print a rollout as a row of a dataset: its calls as gold."
)
@click.option("--full", is_flag=True, help="Show a rollout's system prompt and long values whole.")
def show(what: str | None, output_dir: str, field: str | None, row_id: str | None, full: bool) -> None:
    """Read evaluations and rollouts in the terminal.

    \b
    WHAT is one of these:
      nothing, or a runs folder               list the evaluations there
      an evaluation: its name, latest, a path print its whole report
      a rollout: "EVALUATION ROW#1", its id   print its conversation
        or its roll_ID.json
      the id of a row                         list its rollouts

    With --by, WHAT is an evaluation, and its scores are printed by group.
    """
    folder = Path(output_dir)
    if field is not None:
        if what is None:
            raise click.UsageError("--by takes an evaluation: name one, or latest.")
        from reward_kit.agent.reports.listings import group_lines

        print_lines(group_lines(_result(what, output_dir), field, terminal_width(sys.stdout)))
    elif what is None or _is_runs_folder(what):
        _list_evaluations(folder if what is None else Path(what))
    elif (rollout := _rollout(what, output_dir)) is not None:
        if row_id is None:
            _print_rollout(rollout, full=full)
        else:
            _print_row(rollout, row_id)
    elif row_id is not None:
        raise click.UsageError('--as-row takes a rollout: "EVALUATION ROW#1".')
    elif _is_row(what, folder):
        from reward_kit.agent.reports.listings import rollout_lines

        print_lines(rollout_lines(folder / "evals", what, terminal_width(sys.stdout)))
    else:
        _print_report(what, output_dir)


def _print_row(rollout: Path, row_id: str) -> None:
    from reward_kit.agent.after.as_row import row_of
    from reward_kit.agent.store.loading import load_rollout

    with load_rollout(rollout) as trace:
        print_lines([json.dumps(row_of(trace, row_id), ensure_ascii=False)])


def _is_runs_folder(name: str) -> bool:
    try:
        return (Path(name) / "evals").is_dir()
    except OSError:  # too long for a path
        return False


def _list_evaluations(folder: Path) -> None:
    from reward_kit.agent.reports.listings import evaluation_lines

    check_runs_folder(folder)
    lines = list(evaluation_lines(folder / "evals", terminal_width(sys.stdout)))
    print_lines(lines or [f"there are no evaluations in {folder} yet"])


def _is_row(what: str, folder: Path) -> bool:
    """True for the id of a row with rollouts, if no evaluation has this name."""
    from reward_kit.agent.reports.listings import stored_rows

    try:
        is_name = (folder / "evals" / f"{what}.db").is_file() or Path(what).is_file()
    except (OSError, ValueError):
        return False
    return not is_name and "/" not in what and what in stored_rows(folder / "evals")


def _print_report(name: str, output_dir: str) -> None:
    from reward_kit.agent.reports.console import report_lines
    from reward_kit.agent.reports.listings import stored_rows

    try:
        result = _result(name, output_dir)
    except UsageError as error:
        rows = sorted(stored_rows(Path(output_dir) / "evals"))
        near = get_close_matches(name, rows, n=1)
        if not near:
            raise
        remedy = f"Did you mean the row {near[0]!r}? {error.remedy or ''}".rstrip()
        raise UsageError(error.fault, place=error.place, remedy=remedy) from None
    print_lines(report_lines(result, shutil.get_terminal_size().columns))


def _result(name: str, output_dir: str) -> EvaluationResult:
    from reward_kit.agent.reports.stored_results import stored_result
    from reward_kit.agent.store.stored_evaluation import load_evaluation

    return stored_result(load_evaluation(name, output_dir))


def _rollout(what: str, output_dir: str) -> Path | None:
    """The address of the rollout that ``what`` names; None if it names anything else."""
    from reward_kit.agent.rollout.trace import FORMAT
    from reward_kit.agent.store.loading import find_rollout

    path = Path(what)
    try:
        if path.is_file():
            plain = json.loads(path.read_bytes()) if path.suffix == ".json" else None
            return path if isinstance(plain, dict) and plain.get("format") == FORMAT else None
        if (Path(output_dir) / "evals" / f"{what}.db").is_file():
            return None
        found = find_rollout(what, output_dir)
    except (OSError, ValueError):
        return None  # the search for an evaluation of this name reports it
    return None if found is None else found.address


def _print_rollout(name: Path, *, full: bool) -> None:
    from reward_kit.agent.reports.branches import tree_lines, trees_of
    from reward_kit.agent.store.loading import load_rollout
    from reward_kit.agent.store.transcript import transcript_lines

    record = load_rollout(name)
    try:
        lines = list(transcript_lines(record, terminal_width(sys.stdout), full=full))
        if record.stored is not None:
            tree = trees_of(record.stored.file.parent, record.stored.file.stem, record.id)
            lines += [""] * bool(tree) + list(tree_lines(tree, terminal_width(sys.stdout)))
    except (KeyError, TypeError, AttributeError) as error:  # a file that another program wrote
        raise StorageError(f"is a damaged trace of a rollout: {error!r}", place=str(name)) from error
    print_lines(lines)
