"""``reward-kit view``: evaluations and rollouts in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import click

from reward_kit.agent.base.network import LOOPBACK, listen
from reward_kit.agent.base.printing import say
from reward_kit.agent.base.text import count, from_here
from reward_kit.cli.common_options import check_runs_folder, command, runs_option
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from reward_kit.agent.store.stored_evaluation import StoredEvaluation


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
    from reward_kit.agent.store.stored_evaluation import load_evaluation

    named = [load_evaluation(name, output_dir) for name in evaluations]
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


def _folder(named: list[StoredEvaluation], default: Path) -> Path:
    """The runs folder of the named evaluations; raises ``UsageError`` if there is none, or several."""
    folders = {stored.folder.resolve() for stored in named} or {default.resolve()}
    if len(folders) > 1:
        raise UsageError(
            "the evaluations lie in several runs folders", remedy="Name those of one folder at a time."
        )
    folder = folders.pop()
    check_runs_folder(folder)
    return folder
