"""Options that several commands share, and those of ``agent-eval``, from the fields of the configuration.

Also the suggestions for misspelt flags, and the files that options name.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import nullcontext
from functools import partial
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, ClassVar

import click

from reward_kit.agent.base.files import TO_OUTPUT, check_target, write_output
from reward_kit.agent.base.network import LOOPBACK
from reward_kit.agent.base.printing import print_lines, reserved_output, warn
from reward_kit.agent.base.text import closest, from_here
from reward_kit.agent.config import DEFAULTS, GROUPS, OPTIONS, OTHER_NAMES, flag_of
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from contextlib import AbstractContextManager

    from reward_kit.agent.base.option import Option

HELP_ALL = "reward_kit.help_all"
PATH = click.Path(path_type=Path)
_RANGE = re.compile(r"\s+\[[^\]]*<[^\]]*\]$")  # click's note on the range of a number


class Command(click.Command):
    """A command whose help lists an option's flags up to the first long one; the others are aliases."""

    renamed: ClassVar[Mapping[str, str]] = {}
    """Replacements of flags that the command no longer takes, or that other tools have."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records = (_help_record(parameter, ctx) for parameter in self.get_params(ctx))
        with formatter.section("Options"):
            formatter.write_dl([record for record in records if record], col_max=28)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            flags = [flag for one in self.get_params(ctx) for flag in (*one.opts, *one.secondary_opts)]
            known, name = [flag for flag in flags if flag.startswith("--")], error.option_name
            meant = self.renamed.get(name) or closest(name, known)
            hint = f" Did you mean {meant!r}?" if meant else ""
            raise click.UsageError(f"No such option {name!r}.{hint}", ctx) from error


class Range(click.FloatRange):
    """Numbers in a range, which ``nan`` is in for click."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return self.fail(f"{value!r} is no number.", param, ctx) if isnan(number) else number


command = partial(click.command, cls=Command)


def _help_record(parameter: click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
    """The flags and the text of a parameter in the help; None for an argument or a hidden option."""
    record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
    if record is None:
        return None
    names, text = record[0], _RANGE.sub("", record[1])
    first = next((at for at, flag in enumerate(parameter.opts) if flag.startswith("--")), 0)
    for alias in parameter.opts[first + 1 :]:
        names = names.replace(f", {alias}", "")
    return names, text


evaluation_argument = click.argument("evaluation", metavar="EVALUATION")
words = partial(
    click.argument, nargs=-1, callback=lambda _context, _parameter, said: " ".join(said) if said else None
)
"""An argument of several words, which are taken as one text: ``latest ROW#1`` needs no quotes."""
runs_option = click.option(
    *OPTIONS["output_dir"].flags,
    default="runs",
    metavar="DIR",
    help="The folder of evaluations. Default: runs.",
)
user_model_option = partial(click.option, "--user-model", "--sim-model", "user_model", metavar="NAME")
row_option = partial(click.option, "--rows", "--task-ids", "--row", "row", metavar="ID")


def rows_option(
    help: str = "Only these rows: ids, patterns (book.*) or positions from 0, separated by commas.",  # noqa: A002 - as click's
) -> Callable[..., Any]:
    """The option that chooses rows."""
    return click.option("--rows", "--task-ids", "--row", "task_ids", metavar="IDS", help=help)


def listening_options(when: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The options that say where a server listens."""
    text = f"The address to listen on{when}. Default: {LOOPBACK}."
    host = click.option("--host", default=LOOPBACK, metavar="ADDRESS", help=text)
    kind, text = click.IntRange(0, 65535), f"The port to listen on{when}; 0: a free one. Default: 8000."
    port = click.option("--port", type=kind, default=8000, metavar="PORT", help=text)
    return lambda function: host(port(function))


def file_option(flag: str, *, help: str) -> Callable[..., Any]:  # noqa: A002 - as click's
    """An option for a file to write, by default the output, which is checked before any work."""

    def checked(_context: click.Context, _option: click.Parameter, path: str | None) -> str | None:
        check_target(flag, path)
        return path

    about: dict[str, Any] = {"metavar": "[FILE]", "is_flag": False, "flag_value": TO_OUTPUT, "help": help}
    return click.option(flag, f"{flag.strip('-')}_path", callback=checked, **about)


def output_for(json_path: str | None) -> AbstractContextManager[BinaryIO | None]:
    """Keep the output for the JSON that goes there: whatever code prints is shown on stderr."""
    return reserved_output() if json_path == TO_OUTPUT else nullcontext()


def print_report(
    lines: Iterable[str], to_json: Callable[[], Any], json_path: str | None, output: BinaryIO | None = None
) -> None:
    """Print ``lines`` (to stderr if the JSON goes to the output), and write the JSON if a path is given.

    ``output`` is the one that ``output_for`` keeps, if it does.
    """
    from reward_kit.agent.base.encoding import readable_json

    print_lines(lines, err=json_path == TO_OUTPUT)
    if json_path is not None:
        write_output(readable_json(to_json()), json_path, output)


def check_runs_folder(folder: Path) -> None:
    """Raise ``UsageError`` unless there are evaluations in the folder."""
    if not (folder / "evals").is_dir():
        fault, place = "there are no evaluations in this folder", str(from_here(folder))
        raise UsageError(fault, place=place, remedy="Is --output-dir right?")


# -- the options of agent-eval


class GroupedCommand(Command):
    """A command that lists its options under the headings of the configuration."""

    renamed: ClassVar[Mapping[str, str]] = {
        f"--{other.replace('_', '-')}": flag_of(name) for other, name in OTHER_NAMES.items()
    } | {"--env": "BUNDLE (tau_retail_task for retail)"}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        for parameter in self.get_params(ctx):
            option = OPTIONS.get(parameter.name or "")
            if option and not option.usual and not ctx.meta.get(HELP_ALL):
                continue
            if record := _help_record(parameter, ctx):
                records[option.group if option else GROUPS[-1]].append(record)
        for group, lines in records.items():
            with formatter.section(group):
                formatter.write_dl(lines, col_max=28)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse, and warn that only the last of several values of an option counts."""
        parsed = as_click_parses(args)
        rest = super().parse_args(ctx, list(parsed))
        _, _, order = self.make_parser(ctx).parse_args(args=list(parsed))
        for parameter, times in Counter(order).items():
            option = OPTIONS.get(parameter.name or "")
            if times > 1 and option is not None and option.kind not in (bool, dict) and not option.several:
                warn(f"{option.flag} is given {times} times; only the last counts")
        return rest


def as_click_parses(args: list[str]) -> list[str]:
    """Translate the forms of tau-bench's flags that click does not know.

    ``--task-ids 2 4 6`` becomes ``--task-ids 2,4,6``. After a flag without a value, ``1`` and ``true`` are
    dropped, ``0`` and ``false`` with the flag.
    """
    switches = [one for one in OPTIONS.values() if one.kind is bool and "/" not in one.flags[0]]
    plain = {flag for option in switches for flag in option.flags}
    taken: list[str] = []
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        if word == "--task-ids":
            values = []
            while waiting and not waiting[0].startswith("-"):
                values.append(waiting.pop(0))
            taken += [word, ",".join(values)] if values else [word]
        elif word in plain and waiting and waiting[0].lower() in ("0", "1", "false", "true"):
            taken += [word] * (waiting.pop(0).lower() in ("1", "true"))
        else:
            taken.append(word)
    return taken


def _show_all(ctx: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked:
        ctx.meta[HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def all_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add every field of the configuration as an option, and ``--help-all``."""
    about: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": _show_all}
    command = click.option("--help-all", help="Show all options and exit.", **about)(command)
    shown = {name: None for name, option in OPTIONS.items() if not option.hidden}
    return add_options(command, shown, OPTIONS)


def add_options(
    command: Callable[..., Any], shown: Mapping[str, str | None], hidden: Collection[str]
) -> Callable[..., Any]:
    """Add fields of the configuration as options: the ``shown``, with their help texts (None: their own)."""
    for name in reversed([one for one in OPTIONS if one in shown or one in hidden]):
        option = OPTIONS[name]
        about = {"default": None, "help": shown.get(name) or _help(name, option), "hidden": name not in shown}
        command = click.option(*option.flags, name, **{**about, **_kind(name, option)})(command)
    return command


def _help(name: str, option: Option) -> str:
    default = DEFAULTS[name]
    if option.env:
        return f"{option.help} [environment: {option.env}]"
    if default is None or isinstance(default, bool):
        return option.help
    return f"{option.help} Default: {default}."


def _kind(name: str, option: Option) -> dict[str, Any]:
    """The type of an option for click, which only parses: the configuration checks the values."""
    if option.kind is bool:
        return {} if "/" in option.flags[0] else {"is_flag": True}
    if option.several:
        return {"multiple": True, "metavar": option.metavar, "callback": _distinct}
    if option.kind is dict:
        return {"multiple": True, "metavar": option.metavar}
    if option.choices:
        return {"type": click.Choice(option.choices)}
    if option.bare is not None:
        return {"is_flag": False, "flag_value": option.bare, "metavar": option.metavar}
    return {"type": _number_or_auto if name == "workers" else option.kind, "metavar": option.metavar}


def _distinct(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> Any:
    """The only value itself, or a tuple of the different ones."""
    several = tuple(dict.fromkeys(values))
    return several if len(several) > 1 else next(iter(several), None)


def _number_or_auto(text: str) -> int | str:
    if text == "auto" or text.isdecimal():
        return text if text == "auto" else int(text)
    raise click.BadParameter(f"expected a number of processes or auto, got {text!r}")
