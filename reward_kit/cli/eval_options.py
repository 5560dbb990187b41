"""The options of ``reward-kit agent-eval``, made from the fields of the configuration."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.printing import warn
from reward_kit.agent.config import DEFAULTS, GROUPS, OPTIONS, OTHER_NAMES, flag_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.base.option import Option

_ALL = "reward_kit.help_all"


class GroupedCommand(click.Command):
    """A command that lists its options under the headings of the configuration."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        records: dict[str, list[tuple[str, str]]] = {group: [] for group in GROUPS}
        for parameter in self.get_params(ctx):
            names, text = parameter.get_help_record(ctx) or ("", "")
            option = OPTIONS.get(parameter.name or "")
            if option and not option.usual and not ctx.meta.get(_ALL):
                continue
            for alias in option.flags[len(option.shown) :] if option else ():
                names = names.replace(f", {alias}", "")
            records[option.group if option else GROUPS[-1]].append((names, text))
        for group, lines in records.items():
            with formatter.section(group):
                formatter.write_dl(lines, col_max=28)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            parsed = as_click_parses(args)
            self._warn_of_repeated(ctx, parsed)
            return super().parse_args(ctx, parsed)
        except click.NoSuchOption as error:
            meant = OTHER_NAMES.get(error.option_name.lstrip("-").replace("-", "_"))
            if meant is None:
                raise
            text = f"No such option {error.option_name!r}. Did you mean {flag_of(meant)!r}?"
            raise click.UsageError(text, ctx) from error
        except click.UsageError as error:
            if not error.message.startswith("Got unexpected extra argument"):
                raise
            text = f"{error.message}. This command takes only options; the dataset is --dataset PATH."
            raise click.UsageError(text, ctx) from error

    def _warn_of_repeated(self, ctx: click.Context, args: list[str]) -> None:
        """Warn that only the last of several values of an option counts."""
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for parameter, times in Counter(order).items():
            option = OPTIONS.get(parameter.name or "")
            if times > 1 and option is not None and option.kind not in (bool, dict) and not option.several:
                warn(f"{option.flag} is given {times} times; only the last counts")


def as_click_parses(args: list[str]) -> list[str]:
    """Translate the two forms of tau-bench's flags that click does not know.

    ``--task-ids 2 4 6`` becomes ``--task-ids 2,4,6``; after ``--shuffle``, ``1`` is dropped, and ``0`` with
    the flag. The command takes no arguments besides its options, so nothing else can be meant.
    """
    taken: list[str] = []
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        if word == "--task-ids":
            values = []
            while waiting and not waiting[0].startswith("-"):
                values.append(waiting.pop(0))
            taken += [word, ",".join(values)] if values else [word]
        elif word == "--shuffle" and waiting and waiting[0] in ("0", "1"):
            taken += [word] * (waiting.pop(0) == "1")
        else:
            taken.append(word)
    return taken


def _show_all(ctx: click.Context, _parameter: click.Parameter, asked: bool) -> None:
    if asked:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def click_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add every field of the configuration as an option, and ``--help-all``."""
    command = click.option(
        "--help-all",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        help="Show all options and exit.",
    )(command)
    for name, option in reversed(list(OPTIONS.items())):
        about = {"default": None, "help": _help(name, option), **_kind(name, option)}
        command = click.option(*option.flags, name, **about)(command)
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
