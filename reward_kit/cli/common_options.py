"""Parts that the commands share: flags of one meaning, suggestions for misspelt ones, files to write."""

from __future__ import annotations

import re
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import click

from reward_kit.agent.base.files import TO_OUTPUT, check_target, write_output
from reward_kit.agent.base.network import LOOPBACK
from reward_kit.agent.base.printing import print_lines
from reward_kit.agent.base.text import from_here
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


class Command(click.Command):
    """A command whose help lists an option's flags up to the first long one; the others are aliases."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Replacements of flags that the command no longer takes, or that other tools have."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = (help_record(parameter, ctx) for parameter in self.get_params(ctx))
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record], col_max=28)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            known = [flag for one in self.get_params(ctx) for flag in (*one.opts, *one.secondary_opts)]
            near = get_close_matches(
                error.option_name, [flag for flag in known if flag.startswith("--")], n=1
            )
            meant = self.renamed.get(error.option_name) or next(iter(near), None)
            raise click.UsageError(
                f"No such option {error.option_name!r}." + (f" Did you mean {meant!r}?" if meant else ""), ctx
            ) from error


command = partial(click.command, cls=Command)
_RANGE = re.compile(r"\s+\[[^\]]*<[^\]]*\]$")  # click's note on the range of a number


def help_record(parameter: click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
    """The flags and the text of a parameter in the help; None for an argument or a hidden option."""
    record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
    if record is None:
        return None
    names, text = record[0], _RANGE.sub("", record[1])
    first = next((at for at, flag in enumerate(parameter.opts) if flag.startswith("--")), 0)
    for alias in parameter.opts[first + 1 :]:
        names = names.replace(f", {alias}", "")
    return names, text


runs_option = click.option(
    "-o",
    "--output-dir",
    "--log-dir",
    metavar="DIR",
    default="runs",
    help="The folder of evaluations. Default: runs.",
)


def rows_option(help: str) -> Callable[..., Any]:  # noqa: A002 - as click's
    """The option that chooses rows."""
    return click.option("--rows", "--task-ids", "--row", "task_ids", metavar="IDS", help=help)


def listening_options(when: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that say where a server listens."""
    port: dict[str, Any] = {"type": click.IntRange(0, 65535), "default": 8000, "metavar": "PORT"}

    def options(function: Callable[..., Any]) -> Callable[..., Any]:
        about = f"The port to listen on{when}; 0: a free one. Default: 8000."
        asked = click.option("--port", help=about, **port)(function)
        about = f"The address to listen on{when}. Default: {LOOPBACK}."
        return click.option("--host", default=LOOPBACK, metavar="ADDRESS", help=about)(asked)

    return options


def file_option(flag: str, *, help: str) -> Callable[..., Any]:  # noqa: A002 - as click's
    """An option for a file to write, by default the output, which is checked before any work."""

    def checked(_context: click.Context, _option: click.Parameter, path: str | None) -> str | None:
        check_target(flag, path)
        return path

    name = f"{flag.strip('-')}_path"
    about: dict[str, Any] = {"metavar": "[FILE]", "is_flag": False, "flag_value": TO_OUTPUT, "help": help}
    return click.option(flag, name, callback=checked, **about)


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
