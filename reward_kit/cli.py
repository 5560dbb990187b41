"""The command ``reward-kit``: a group that imports a command when it runs, so that ``--help`` is quick.

Exit codes: that of the command (0 done, 1 done with something to look at), 2 for wrong usage or input,
130 when interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from reward_kit.agent.base.printing import say
from reward_kit.errors import RewardKitError
from reward_kit.lazy_names import lazy_names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.cli_commands.deploy import deploy_command
    from reward_kit.cli_commands.preview import preview_command

__all__ = ["cli", "deploy_command", "main", "parse_args", "preview_command"]

NAME = "reward-kit"

__getattr__ = lazy_names(
    __name__,
    {
        "reward_kit.cli_commands.deploy": ["deploy_command"],
        "reward_kit.cli_commands.preview": ["preview_command"],
    },
)


class _Home(NamedTuple):
    module: str
    function: str
    help: str | None
    """One line for the group's help; a command without one is not listed."""


_COMMANDS = {
    "agent-eval": _Home(
        "agent_eval",
        "agent_eval",
        "Evaluate an agent on a task bundle: many rollouts, judged by the bundle's reward.",
    ),
    "show": _Home("show", "show", "List evaluations; print the report of one again, or a rollout to read."),
    "view": _Home("view", "view", "Read evaluations and their rollouts in a browser."),
    "compare": _Home(
        "compare", "compare", "Compare evaluations, row by row: which is better, and is it noise?"
    ),
    "export": _Home("export", "export", "Export the rollouts of an evaluation as training data: JSON lines."),
    "db": _Home("db", "db", "Open, export and compare databases of rollouts."),
    "fastworkflow": _Home(
        "fastworkflow",
        "fastworkflow",
        "Set up, train and check FastWorkflow as the agent under test.",
    ),
    "mcp": _Home("mcp", "mcp", "Serve a bundle's tools to MCP clients."),
    "rescore": _Home("rescore", "rescore", "Judge a finished evaluation again by a changed reward."),
    "preview": _Home("preview", "preview", "Try an evaluator on a few samples."),
    "deploy": _Home("deploy", "deploy", None),
}


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return [name for name, home in _COMMANDS.items() if home.help]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        home = _COMMANDS.get(cmd_name)
        if home is None:
            return None
        module = importlib.import_module(f"reward_kit.cli_commands.{home.module}")
        command: click.Command = getattr(module, home.function)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section("Commands"):
            formatter.write_dl([(name, home.help) for name, home in _COMMANDS.items() if home.help])


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted:
        from reward_kit import __version__

        say(f"{NAME} {__version__}")
        context.exit()


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.option("-v", "--verbose", is_flag=True, help="Log what the package does, on stderr.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Version."
)
@click.pass_context
def cli(context: click.Context, verbose: bool) -> None:
    """Evaluate tool-using agents on task bundles.

    A file .env in the working directory is read first; what the environment already sets is kept.
    """
    if verbose:
        import logging

        logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
        logging.getLogger("reward_kit").setLevel(logging.DEBUG)
    if context.invoked_subcommand is None:
        say(context.get_help())


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (``sys.argv`` without ``argv``) and return the exit code."""
    _open_closed_streams()
    _read_dotenv()
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    if "_REWARD_KIT_COMPLETE" in os.environ:
        cli.main(prog_name=NAME)  # click answers the shell's request for completions and exits
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        _flush_output(code)
    except BrokenPipeError:
        _discard_output()
        return 128 + 13  # the code that a shell expects of a process that SIGPIPE ended
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _discard_output()
        say(f"Error: cannot write the output: {error.strerror}", err=True)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def _open_closed_streams() -> None:
    """Open standard streams that the caller closed (``>&-``) on the null device.

    Otherwise the next file to be opened gets such a number, and receives what is printed.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, f"__{name}__") is None:
            null = os.open(os.devnull, os.O_RDWR)  # the lowest free number, so this one
            os.set_inheritable(null, True)
            setattr(sys, name, os.fdopen(null, "w" if number else "r", encoding="utf-8"))


def _run(arguments: list[str]) -> int:
    try:
        with cli.make_context(NAME, arguments) as context:
            code = cli.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
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


def _flush_output(code: int) -> None:
    """Flush; raise ``OSError`` if the output is full, unless ``code`` says that an error was shown."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError:
        if code != 2:
            raise
        _discard_output()


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
    try:
        with cli.make_context(NAME, [name]) as group:
            _, command, _ = cli.resolve_command(group, [name])
            assert command is not None
            tolerant: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}
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
        import logging

        from dotenv import load_dotenv

        logger, handler = logging.getLogger("dotenv.main"), logging.StreamHandler()
        handler.setFormatter(logging.Formatter("Warning: .env: %(message)s"))
        logger.addHandler(handler)
        try:
            load_dotenv(file, override=False)
        except (OSError, UnicodeDecodeError) as error:
            say(f"Warning: .env cannot be read: {error}", err=True)
        finally:
            logger.removeHandler(handler)


def _discard_output() -> None:
    """Drop what is left of the output, which has no reader, so that Python's flush at exit does not fail."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
