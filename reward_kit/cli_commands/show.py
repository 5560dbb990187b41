"""``reward-kit show``: the evaluations there are, the report of one again, or a rollout to read."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reward_kit.agent.base.printing import print_lines, terminal_width
from reward_kit.cli_commands.runs_option import runs_option

if TYPE_CHECKING:
    from reward_kit.agent.scoring.results import EvaluationResult

DONE = 0


@click.command("show")
@click.argument("what", metavar="[WHAT]", required=False)
@runs_option
@click.option(
    "--by",
    "field",
    metavar="FIELD",
    help="Print the scores of groups of rows instead, by a field of theirs, such as metadata.domain.",
)
def show(what: str | None, output_dir: str, field: str | None) -> int:
    """List evaluations; print the report of one again, or a rollout to read.

    WHAT is the name of an evaluation (latest: the last) or the path of its file: its report is printed
    again. Or it is a rollout, as "EVALUATION ROW#1", by its id or its roll_ID.json: its conversation is
    printed. Or it is the id of a row: its rollouts are listed. Without WHAT, or with a runs folder, the
    evaluations there are listed. With --by, the scores of an evaluation are printed by group.
    """
    if field is not None:
        if what is None:
            raise click.UsageError("--by takes an evaluation: name one, or latest.")
        _print_groups(what, output_dir, field)
        return DONE
    if what is None or _is_runs_folder(what):
        _list_evaluations(Path(output_dir if what is None else what))
        return DONE
    rollout = _rollout(what, output_dir)
    if rollout is not None:
        _print_rollout(rollout)
    elif _is_row(what, Path(output_dir)):
        _list_rollouts(what, Path(output_dir))
    else:
        _print_report(what, output_dir)
    return DONE


def _is_runs_folder(name: str) -> bool:
    try:
        return (Path(name) / "evals").is_dir()
    except OSError:  # no path at all: too long
        return False


def _list_evaluations(folder: Path) -> None:
    from reward_kit.agent.reports.listings import evaluation_lines
    from reward_kit.errors import UsageError

    if not (folder / "evals").is_dir():
        raise UsageError(
            "there are no evaluations in this folder", place=str(folder), remedy="Is --output-dir right?"
        )
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


def _list_rollouts(row_id: str, folder: Path) -> None:
    from reward_kit.agent.reports.listings import rollout_lines

    print_lines(_tame(line) for line in rollout_lines(folder / "evals", row_id))


def _print_report(name: str, output_dir: str) -> None:
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.cli_commands.report_output import print_result
    from reward_kit.errors import UsageError

    try:
        result = _result(name, output_dir)
    except UsageError as error:
        row = _near_row(name, Path(output_dir))
        if row is None:
            raise
        remedy = f"Did you mean the row {row!r}? {error.remedy or ''}".rstrip()
        raise UsageError(error.fault, place=error.place, remedy=remedy) from None
    print_result(result, EvaluationConfig())


def _print_groups(name: str, output_dir: str, field: str) -> None:
    from reward_kit.agent.reports.listings import group_lines

    print_lines(group_lines(_result(name, output_dir), field))


def _result(name: str, output_dir: str) -> EvaluationResult:
    from reward_kit.agent.reports.stored_results import stored_result
    from reward_kit.agent.storage.stored_evaluation import load_evaluation

    return stored_result(load_evaluation(name, output_dir))


def _near_row(what: str, folder: Path) -> str | None:
    """The row of almost this id that has rollouts; None where there is none."""
    from difflib import get_close_matches

    from reward_kit.agent.reports.listings import stored_rows

    return next(iter(get_close_matches(what, sorted(stored_rows(folder / "evals")), n=1)), None)


def _print_rollout(name: str | Path) -> None:
    from reward_kit.agent.records.rollout_record import load_rollout
    from reward_kit.agent.reports.transcript import transcript
    from reward_kit.errors import StorageError

    record = load_rollout(name)
    try:
        text = transcript(record)
    except (KeyError, TypeError, AttributeError) as error:  # written by other hands
        raise StorageError(f"is a damaged record of a rollout: {error!r}", place=str(name)) from error
    print_lines(_tame(line) for line in text.splitlines())
    print_lines([f"file: {record.path}"])


def _tame(line: str) -> str:
    """Text of models and tools for a terminal: nothing that moves its cursor or sets its title."""
    spaced = line.replace("\t", "    ")
    return "".join(character for character in spaced if character.isprintable())


def _rollout(what: str, output_dir: str) -> Path | None:
    """The rollout that is meant; None for anything else."""
    from reward_kit.agent.records.names import find_rollout
    from reward_kit.agent.records.rollout_record import FORMAT

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
