"""The command ``reward-kit``: a group that imports a command when it runs, so that ``--help`` is quick.

Exit codes: that of the command (0 done, 1 done with something to look at), 2 for wrong usage or input,
130 when interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reward_kit.agent.base.printing import hide_in_output, say, warn
from reward_kit.agent.base.text import did_you_mean
from reward_kit.errors import RewardKitError
from reward_kit.lazy_names import lazy_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.cli.preview import deploy_command, preview_command

__all__ = ["cli", "deploy_command", "main", "parse_args", "preview_command"]

NAME = "reward-kit"

_OF_PREVIEW = ("deploy_command", "preview_command")
__getattr__, *_ = lazy_names(__name__, dict.fromkeys(_OF_PREVIEW, "reward_kit.cli.preview"))

GROUPS = {
    "Bundles": {
        "init": "Make a new bundle, with comments that say what to do.",
        "validate": "Check a bundle without a model; --deep: its tasks, too.",
        "tools": "Show a bundle's tools as a model sees them; call them.",
        "play": "Play a rollout by hand: as agent, as user, or as both.",
        "pack": "Pack a bundle into one file, to share it.",
        "list": "List the installed bundles.",
    },
    "Evaluate": {
        "agent-eval": "Evaluate an agent on a bundle.",
        "show": "Read evaluations and rollouts in the terminal.",
        "view": "Read evaluations and rollouts in a browser.",
        "compare": "Compare evaluations: which is better, or is it noise?",
        "plan": "Say how small a difference your rows can show.",
    },
    "Go on": {
        "rescore": "Judge stored rollouts again by a changed reward.",
        "export": "Write training data, or the scores as a card.",
        "explain": "Ask a model who was at fault in each failed rollout.",
        "branch": "Play on from a step of a rollout: why did it fail?",
    },
    "Connect": {
        "mcp": "Serve a bundle's tools to MCP clients.",
        "serve": "Serve episodes of a bundle over HTTP, for trainers.",
        "port": "Read the tasks and results of other benchmarks.",
        "db": "Open and compare databases of rollouts.",
        "fastworkflow": "Set up, train and check FastWorkflow as the agent.",
    },
}
"""The commands of the help, by what they are for."""
_RENAMED = {
    "audit": ("validate", "--deep"),
    "card": ("export", "--format", "card"),
    "gate": ("compare", "--gate"),
}
"""Old commands, with the arguments that replace them."""
_MODULES = {
    "agent_eval": ("agent-eval", "branch"),
    "bundle": ("init", "pack", "tools", "list"),
    "compare": ("compare", "plan"),
    "judging": ("rescore", "explain"),
    "preview": ("preview", "deploy"),
    "serving": ("mcp", "serve"),
    "show": ("show", "view"),
}
"""Modules with several commands, or without their command's name."""


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [name for commands in GROUPS.values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in (*self.list_commands(ctx), "preview", "deploy"):
            return None
        module = next((module for module, names in _MODULES.items() if cmd_name in names), cmd_name)
        found = vars(importlib.import_module(f"reward_kit.cli.{module}")).values()
        return next(one for one in found if isinstance(one, click.Command) and one.name == cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in _RENAMED:
            args = [*_RENAMED[args[0]], *args[1:]]
        elif not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            known = [*self.list_commands(ctx), *_RENAMED]
            raise click.UsageError(f"No such command {args[0]!r}{did_you_mean(args[0], known)}.", ctx)
        return super().resolve_command(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        formatter.write("Usage: reward-kit [-v] COMMAND ...    (reward-kit COMMAND --help says more)")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        for group, commands in GROUPS.items():
            for at, (name, text) in enumerate(commands.items()):
                formatter.write(f"{group if at == 0 else '':10}{name:14}{text}\n")
        formatter.write("-v, --verbose: log on stderr   --version   -h, --help\n")


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("-v", "--verbose", is_flag=True, help="Log what the package does, on stderr.")
@click.version_option(package_name=NAME, prog_name=NAME, message="%(prog)s %(version)s", help="Version.")
@click.pass_context
def cli(context: click.Context, verbose: bool) -> None:
    """Evaluate tool-using agents on task bundles. A file .env here is read first."""
    if verbose:
        import logging

        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("reward_kit").setLevel(logging.DEBUG)
    if context.invoked_subcommand is None:
        say(context.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` without ``argv``) and return the exit code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller: the next file would get its number
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))
    _read_dotenv()
    hide_in_output()
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    if "_REWARD_KIT_COMPLETE" in os.environ:
        cli.main(prog_name=NAME)  # click answers the shell's request for completions and exits
    code = 0
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        # Python flushes the output once more at its end, which must not fail
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            return 128 + 13  # the code that a shell expects of a process that SIGPIPE ended
        if code != 2:  # else an error was shown
            say(f"Error: cannot write the output: {error.strerror}", err=True)
        return 2
    return code


def _run(arguments: list[str]) -> int:
    try:
        with cli.make_context(NAME, arguments) as context:
            code = cli.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (KeyboardInterrupt, click.Abort):
        say("Interrupted.", err=True)
        return 130
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        say(shown.getvalue().removesuffix("\n"), err=True)
        return error.exit_code
    except RewardKitError as error:
        say(f"Error: {error}", err=True)
        return 2
    return code if isinstance(code, int) else 0


def parse_args(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """Parse a command line without running it; return the options and the arguments that are unknown.

    The namespace has ``command`` (``None`` without one), ``verbose`` and the command's options. Raises
    ``SystemExit`` if the arguments are wrong or ask for help.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    verbose = False
    while arguments and arguments[0] in ("-v", "--verbose"):
        verbose = True
        arguments.pop(0)
    if not arguments:
        return argparse.Namespace(command=None, verbose=verbose), []
    name, *rest = arguments
    tolerant: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}
    try:
        with cli.make_context(NAME, [name]) as group:
            _, command, _ = cli.resolve_command(group, [name])
            assert command is not None
            context = command.make_context(name, rest, parent=group, **tolerant)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.UsageError as error:
        error.show()
        sys.exit(error.exit_code)
    return argparse.Namespace(command=name, verbose=verbose, **context.params), context.args


def _read_dotenv() -> None:
    file = Path(".env")
    if file.is_file():
        from dotenv import load_dotenv

        try:
            load_dotenv(file, override=False)
        except (OSError, UnicodeDecodeError) as error:
            warn(f".env cannot be read: {error}")
