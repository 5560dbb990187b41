"""Options that several commands share, and the files that they name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.files import TO_OUTPUT, check_target, write_output
from reward_kit.agent.base.printing import print_lines
from reward_kit.agent.base.text import from_here
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

runs_option = click.option(
    "-o",
    "--output-dir",
    "--log-dir",
    metavar="DIR",
    default="runs",
    help="The folder in which names are searched. Default: runs.",
)


def file_option(flag: str, *, help: str, metavar: str = "FILE") -> Callable[..., Any]:  # noqa: A002 - as click's
    """An option for a file to write, which is checked before any work."""

    def checked(_context: click.Context, _option: click.Parameter, path: str | None) -> str | None:
        check_target(flag, path)
        return path

    return click.option(flag, f"{flag.strip('-')}_path", metavar=metavar, callback=checked, help=help)


def print_report(lines: Iterable[str], to_json: Callable[[], Any], json_path: str | None) -> None:
    """Print ``lines`` (to stderr if the JSON goes to the output), and write the JSON if a path is given."""
    from reward_kit.agent.base.encoding import readable_json

    print_lines(lines, err=json_path == TO_OUTPUT)
    if json_path is not None:
        write_output(readable_json(to_json()), json_path)


def check_runs_folder(folder: Path) -> None:
    """Raise ``UsageError`` unless there are evaluations in the folder."""
    if not (folder / "evals").is_dir():
        raise UsageError(
            "there are no evaluations in this folder",
            place=str(from_here(folder)),
            remedy="Is --output-dir right?",
        )
