"""``reward-kit show``: the evaluations there are, the report of one again, or a rollout to read."""

from __future__ import annotations

import glob
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from reward_kit.cli_commands.printing import print_lines, terminal_width
from reward_kit.cli_commands.runs_option import runs_option

if TYPE_CHECKING:
    from reward_kit.agent.results import EvaluationResult

DONE = 0
LISTED = 5


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

    WHAT is the name of an evaluation (latest: the last) or the path of its log or results: its report
    is printed again. Or it is a rollout, by its id or its roll_ID.json: its conversation is printed.
    Or it is the id of a row: its rollouts are listed. Without WHAT, or with a runs folder, the
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
    row = _row_folder(what, Path(output_dir))
    rollout = None if row else _rollout_file(what, Path(output_dir))
    if row is not None:
        _list_rollouts(row)
    elif rollout is None:
        _print_report(what, output_dir)
    else:
        _print_rollout(rollout)
    return DONE


def _is_runs_folder(name: str) -> bool:
    try:
        return (Path(name) / "evals").is_dir()
    except OSError:  # no path at all: too long
        return False


def _list_evaluations(folder: Path) -> None:
    from reward_kit.agent.reports.evaluations_table import evaluation_lines
    from reward_kit.errors import UsageError

    if not (folder / "evals").is_dir():
        raise UsageError(
            "there are no evaluations in this folder", place=str(folder), remedy="Is --output-dir right?"
        )
    lines = list(evaluation_lines(folder / "evals", terminal_width(sys.stdout)))
    print_lines(lines or [f"there are no evaluations in {folder} yet"])


def _row_folder(what: str, folder: Path) -> Path | None:
    """The folder of the row of this id, if there are rollouts in it and no evaluation has this name."""
    row = folder / what
    try:
        if row.parent != folder or (folder / "evals" / f"{what}.jsonl").is_file():
            return None
        return row if next(row.glob("roll_*.json"), None) is not None else None
    except (OSError, ValueError):  # no path at all
        return None


def _list_rollouts(folder: Path) -> None:
    from reward_kit.agent.reports.rollouts_table import rollout_lines

    print_lines(_tame(line) for line in rollout_lines(folder))


def _print_report(name: str, output_dir: str) -> None:
    from reward_kit.agent.evaluation_config import EvaluationConfig
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
    from reward_kit.agent.reports.groups_table import group_lines

    print_lines(group_lines(_result(name, output_dir), field))


def _result(name: str, output_dir: str) -> EvaluationResult:
    from reward_kit.agent.runs.stored_evaluation import load_evaluation
    from reward_kit.agent.runs.stored_result import stored_result

    return stored_result(load_evaluation(name, output_dir))


def _near_row(what: str, folder: Path) -> str | None:
    """The row of almost this id that has rollouts; None where there is none."""
    from difflib import get_close_matches

    try:
        rows = {path.parent.name for path in folder.glob("*/roll_*.json")}
    except OSError:
        return None
    return next(iter(get_close_matches(what, sorted(rows), n=1)), None)


def _print_rollout(path: Path) -> None:
    from reward_kit.agent.reports.transcript import transcript
    from reward_kit.agent.runs.rollout_record import load_rollout
    from reward_kit.errors import StorageError

    try:
        text = transcript(load_rollout(path))
    except (KeyError, TypeError, AttributeError) as error:  # written by other hands
        raise StorageError(f"is a damaged record of a rollout: {error!r}", place=str(path)) from error
    print_lines(_tame(line) for line in text.splitlines())
    print_lines([f"file: {path}"])


def _tame(line: str) -> str:
    """Text of models and tools for a terminal: nothing that moves its cursor or sets its title."""
    spaced = line.replace("\t", "    ")
    return "".join(character for character in spaced if character.isprintable())


def _rollout_file(what: str, folder: Path) -> Path | None:
    """The rollout that is meant; None if it is no rollout's id and no rollout's file."""
    from reward_kit.agent.runs.rollout_record import FORMAT
    from reward_kit.errors import UsageError

    path = Path(what)
    try:
        if path.is_file():
            if path.suffix != ".json":
                return None
            plain = json.loads(path.read_bytes())
            return path if isinstance(plain, dict) and plain.get("format") == FORMAT else None
        if (folder / "evals" / f"{what}.jsonl").is_file():
            return None
        name = glob.escape(what.removeprefix("roll_"))
        found = sorted(folder.glob(f"*/roll_{name}*.json")) if name and "/" not in name else []
    except (OSError, ValueError):
        return None  # told when it is looked for as an evaluation
    if len(found) > 1:
        names = ", ".join(file.stem.removeprefix("roll_") for file in found[:LISTED])
        more = f" and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise UsageError(
            f"{len(found)} rollouts have such an id: {names}{more}",
            place=what,
            remedy="Give more of the id, or the file.",
        )
    return found[0] if found else None
