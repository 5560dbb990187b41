"""The options of ``reward-kit agent-eval``, made from the fields of the configuration."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import click

from reward_kit.agent.base.printing import warn
from reward_kit.agent.config import DEFAULTS, GROUPS, OPTIONS, OTHER_NAMES, flag_of
from reward_kit.cli.common_options import Command, help_record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from reward_kit.agent.base.option import Option

HELP_ALL = "reward_kit.help_all"


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
            if record := help_record(parameter, ctx):
                records[option.group if option else GROUPS[-1]].append(record)
        for group, lines in records.items():
            with formatter.section(group):
                formatter.write_dl(lines, col_max=28)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        parsed = as_click_parses(args)
        rest = super().parse_args(ctx, list(parsed))
        self._warn_of_repeated(ctx, parsed)
        return rest

    def _warn_of_repeated(self, ctx: click.Context, args: list[str]) -> None:
        """Warn that only the last of several values of an option counts."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, times in Counter(order).items():
            option = OPTIONS.get(parameter.name or "")
            if times > 1 and option is not None and option.kind not in (bool, dict) and not option.several:
                warn(f"{option.flag} is given {times} times; only the last counts")


def as_click_parses(args: list[str]) -> list[str]:
    """Translate the forms of tau-bench's flags that click does not know.

    ``--task-ids 2 4 6`` becomes ``--task-ids 2,4,6``. After a flag without a value, ``1`` and ``true`` are
    dropped, ``0`` and ``false`` with the flag.
    """
    plain = {
        flag
        for option in OPTIONS.values()
        if option.kind is bool and "/" not in option.flags[0]
        for flag in option.flags
    }
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
    command = click.option(
        "--help-all",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        help="Show all options and exit.",
    )(command)
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
    if name == "workers":
        return {"type": _number_or_auto, "metavar": option.metavar}
    return {"type": option.kind, "metavar": option.metavar}


def _distinct(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> Any:
    """The only value itself, or a tuple of the different ones."""
    several = tuple(dict.fromkeys(values))
    return several if len(several) > 1 else next(iter(several), None)


def _number_or_auto(text: str) -> int | str:
    if text == "auto" or text.isdecimal():
        return text if text == "auto" else int(text)
    raise click.BadParameter(f"expected a number of processes or auto, got {text!r}")
