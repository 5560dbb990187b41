"""Evaluations and rollouts to read: ``show`` in the terminal, ``view`` in a browser."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from reward_kit.agent.base.network import LOOPBACK, listen
from reward_kit.agent.base.printing import print_lines, say, terminal_width
from reward_kit.agent.base.text import closest, count, from_here
from reward_kit.cli.options import check_runs_folder, command, runs_option, words
from reward_kit.errors import StorageError, UsageError

if TYPE_CHECKING:
    from reward_kit.agent.store.results import EvaluationResult


@command("show")
@words("what", metavar="[WHAT]")
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
      a rollout: EVALUATION ROW#1, its id     print its conversation
        or its roll_ID.json
      the id of a row                         list its rollouts

    With --by, WHAT is an evaluation, and its scores are printed by group.
    """
    from reward_kit.agent.reports import listings
    from reward_kit.agent.reports.console import report_lines
    from reward_kit.agent.store.layout import find_stored, load_evaluation, read_evaluation

    folder, width = Path(output_dir), terminal_width(sys.stdout)
    if field is not None:
        if what is None:
            raise click.UsageError("--by takes an evaluation: name one, or latest.")
        result = read_evaluation(find_stored(what, output_dir), brief=True)
        print_lines(listings.group_lines(result, field, width))
    elif what is None or os.path.isdir(Path(what, "evals")):  # noqa: PTH112 - the name may be too long
        shown = folder if what is None else Path(what)
        check_runs_folder(shown)
        lines = list(listings.evaluation_lines(shown / "evals", width))
        print_lines(lines or [f"there are no evaluations in {shown} yet"])
    elif (rollout := _rollout(what, folder)) is not None:
        _print_rollout(rollout, row_id, full=full)
    elif row_id is not None:
        raise click.UsageError("--as-row takes a rollout: EVALUATION ROW#1.")
    elif _is_row(what, folder):
        print_lines(listings.rollout_lines(folder / "evals", what, width))
    else:
        try:
            result = load_evaluation(what, output_dir)
        except UsageError as error:
            rows = sorted(listings.stored_rows(folder / "evals"))
            if not (near := closest(what, rows)):
                raise
            remedy = f"Did you mean the row {near!r}? {error.remedy or ''}".rstrip()
            raise UsageError(error.fault, place=error.place, remedy=remedy) from None
        print_lines([*report_lines(result, shutil.get_terminal_size().columns)])  # whole, or an error


def _is_row(what: str, folder: Path) -> bool:
    """True for the id of a row with rollouts, if no evaluation has this name."""
    from reward_kit.agent.reports.listings import stored_rows

    is_name = os.path.isfile(folder / "evals" / f"{what}.db") or os.path.isfile(what)  # noqa: PTH113 - likewise
    return not is_name and "/" not in what and what in stored_rows(folder / "evals")


def _rollout(what: str, folder: Path) -> Path | None:
    """The address of the rollout that ``what`` names; None if it names anything else."""
    from reward_kit.agent.rollout.trace import FORMAT
    from reward_kit.agent.store.loading import find_rollout

    path = Path(what)
    try:
        if path.is_file():
            plain = json.loads(path.read_bytes()) if path.suffix == ".json" else None
            return path if isinstance(plain, dict) and plain.get("format") == FORMAT else None
        if (folder / "evals" / f"{what}.db").is_file():
            return None
        found = find_rollout(what, folder)
    except (OSError, ValueError, RecursionError):
        return None  # the search for an evaluation of this name reports it
    return None if found is None else found.address


def _print_rollout(name: Path, row_id: str | None, *, full: bool) -> None:
    """Print a rollout's conversation and branches, or with ``row_id`` the rollout as a row of this id."""
    from reward_kit.agent.after.as_row import row_of
    from reward_kit.agent.after.explainer import stored_explanations
    from reward_kit.agent.reports.listings import tree_lines, trees_of
    from reward_kit.agent.store.loading import load_rollout
    from reward_kit.agent.store.transcript import transcript_lines

    width = terminal_width(sys.stdout)
    record = load_rollout(name)
    try:
        if row_id is None:
            lines = list(transcript_lines(record, width, full=full))
        else:
            with record:
                lines = [json.dumps(row_of(record, row_id), ensure_ascii=False)]
        if record.stored is not None and row_id is None:
            judged = {one.rollout: one for one in stored_explanations(record.stored.file)}
            if (one := judged.get(record.id)) is not None and one.author is not None:
                lines.append(f"judged: {one.author}, {one.fault}: {one.sentence} ({one.model})")
            tree = trees_of(record.stored.file.parent, record.stored.file.stem, record.id)
            lines += [""] * bool(tree) + list(tree_lines(tree, width))
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:  # another wrote it
        raise StorageError(f"is a damaged trace of a rollout: {error!r}", place=str(name)) from error
    print_lines(lines)


@command("view")
@click.argument("evaluations", metavar="[EVALUATION]...", nargs=-1)
@runs_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="PORT", help="The port. Default: a free one."
)
@click.option("--out", metavar="DIR", help="Write the pages to this folder instead of serving them.")
def view(evaluations: tuple[str, ...], output_dir: str, port: int, out: str | None) -> int:
    """Read evaluations and rollouts in a browser.

    Serves pages of all evaluations in the runs folder on this machine until Ctrl-C, and prints the address:
    that of EVALUATION, if one is named (latest: the last). Pages of a running evaluation are kept up to date.

    With --out, the pages of the named evaluations, or of all, are written as files that need no server.
    """
    from reward_kit.agent.reports.listings import read_evaluations
    from reward_kit.agent.reports.pages.site import INDEX, serve, write_pages
    from reward_kit.agent.store.layout import find_stored, read_evaluation

    named = [read_evaluation(find_stored(name, output_dir), brief=out is None) for name in evaluations]
    folder = _folder(named, Path(output_dir))
    if out is not None:
        named, faults = (named, []) if named else read_evaluations(folder / "evals")
        for fault in faults:
            say(f"left out: {fault}", err=True)
        number = sum(1 for _ in write_pages(folder, named, Path(out)))
        say(f"{count(number, 'page')}, beginning with {from_here(Path(out) / INDEX)}")
        return 0
    if len(named) > 1:
        raise click.UsageError("name one EVALUATION; its page links to the others")
    with listen(LOOPBACK, port) as listener:
        start = f"evals/{quote(named[0].eval_id)}.html" if named else ""
        say(f"http://{LOOPBACK}:{listener.getsockname()[1]}/{start} (Ctrl-C ends it)")
        serve(folder, listener)
    return 0


def _folder(named: list[EvaluationResult], default: Path) -> Path:
    """The runs folder of the named evaluations; raises ``UsageError`` if there is none, or several."""
    for file in (one.log_path for one in named if one.log_path.parent.name != "evals"):
        fault, remedy = "it lies in no runs folder", "Put it there: RUNS/evals/NAME.db"
        raise UsageError(fault, place=str(file), remedy=remedy)
    folders = {stored.folder.resolve() for stored in named} or {default.resolve()}
    if len(folders) > 1:
        fault = "the evaluations lie in several runs folders"
        raise UsageError(fault, remedy="Name those of one folder at a time.")
    folder = folders.pop()
    check_runs_folder(folder)
    return folder
