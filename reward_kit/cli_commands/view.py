"""``reward-kit view``: evaluations as pages to read in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from reward_kit.agent.reports.wording import count
from reward_kit.cli_commands.printing import say
from reward_kit.cli_commands.runs_option import runs_option

if TYPE_CHECKING:
    from reward_kit.agent.pages.site import Site
    from reward_kit.agent.runs.stored_evaluation import StoredEvaluation

DONE = 0


@click.command("view")
@click.argument("evaluations", metavar="[EVALUATION]...", nargs=-1)
@runs_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="On which port. Default: one that is free."
)
@click.option("--out", metavar="DIR", help="Write the pages to this folder instead, and end.")
def view(evaluations: tuple[str, ...], output_dir: str, port: int, out: str | None) -> int:
    """Read evaluations and their rollouts in a browser.

    Serves the pages of all evaluations in the runs folder on this machine until Ctrl-C, running ones as they
    are then, and prints the address: that of EVALUATION, if one is named (latest: the last).

    With --out the pages of the named evaluations, or of all, are written as files that need no server.
    """
    from reward_kit.agent.pages.site import Site
    from reward_kit.agent.runs.stored_evaluation import load_evaluation

    named = [load_evaluation(name, output_dir) for name in evaluations]
    folder = _folder(named, Path(output_dir))
    if out is None:
        _serve(Site(folder), named, port)
    else:
        _write(Site(folder), named or _all(folder), Path(out))
    return DONE


def _folder(named: list[StoredEvaluation], default: Path) -> Path:
    """The runs folder of the named evaluations; raises ``UsageError`` where there is none, or several."""
    from reward_kit.errors import UsageError

    folders = {stored.folder.resolve() for stored in named} or {default.resolve()}
    if len(folders) > 1:
        raise UsageError(
            "the evaluations lie in several runs folders", remedy="Name those of one folder at a time."
        )
    folder = folders.pop()
    if not (folder / "evals").is_dir():
        raise UsageError(
            "there are no evaluations in this folder", place=str(default), remedy="Is --output-dir right?"
        )
    return folder


def _all(folder: Path) -> list[StoredEvaluation]:
    from reward_kit.agent.reports.evaluations_table import read_evaluations

    found, faults = read_evaluations(folder / "evals")
    for fault in faults:
        say(f"left out: {fault}", err=True)
    return found


def _serve(site: Site, named: list[StoredEvaluation], port: int) -> None:
    from urllib.parse import quote

    from reward_kit.agent.listening import LOOPBACK, listen
    from reward_kit.agent.pages.serving import serve

    if len(named) > 1:
        raise click.UsageError("name one EVALUATION; the others are a click away")
    with listen(LOOPBACK, port) as listener:
        start = f"evals/{quote(named[0].eval_id)}.html" if named else ""
        say(f"http://{LOOPBACK}:{listener.getsockname()[1]}/{start} (Ctrl-C ends it)")
        serve(site, listener)


def _write(site: Site, evaluations: list[StoredEvaluation], out: Path) -> None:
    from reward_kit.agent.pages.site import INDEX
    from reward_kit.agent.reports.wording import from_here

    number = sum(1 for _ in site.write(evaluations, out))
    say(f"{count(number, 'page')}, beginning with {from_here(out / INDEX)}")
