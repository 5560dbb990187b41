"""The command ``reward-kit``: a group whose commands are imported when they run, so that ``--help`` is quick.

Exit codes: what the command gives (0 done, 1 done with something to look at), 2 for wrong usage or input,
130 when interrupted.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import errno
import gc
import importlib
import io
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from reward_kit.cli_commands.printing import say
from reward_kit.errors import RewardKitError
from reward_kit.lazy_names import lazy_names
from reward_kit.process_end import end_in_time, leave_memory_to_the_system

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.cli_commands.deploy import deploy_command
    from reward_kit.cli_commands.preview import preview_command

__all__ = ["cli", "deploy_command", "main", "parse_args", "preview_command"]

NAME = "reward-kit"
RARELY = 150_000
"""New objects between two garbage collections: what a command imports is none, and each looks through it."""

_is_own_process = False
"""Whether this process is there for the command line alone."""

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
        "FastWorkflow's agent as the agent under test: its environment, its training, what is missing.",
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
        with installed_first(), ended_by_ctrl_c():
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
    """Run the command line (``sys.argv`` without ``argv``); gives the exit code."""
    global _is_own_process
    if argv is None:
        _open_what_is_closed()
        _hear_of_children()
        _is_own_process = threading.current_thread() is threading.main_thread()
        gc.set_threshold(RARELY)
        atexit.register(leave_memory_to_the_system)
    _read_dotenv()
    # console scripts, unlike python -m, do not have it there
    sys.path.insert(0, str(Path.cwd()))
    if "_REWARD_KIT_COMPLETE" in os.environ:
        cli.main(prog_name=NAME)  # click answers the shell's question for completions and exits
    try:
        code = _run(list(sys.argv[1:] if argv is None else argv))
        _flush_output(code)
    except BrokenPipeError:
        _discard_output()
        return 128 + 13  # as if SIGPIPE had ended us, which is what a shell expects
    except OSError as error:
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        _discard_output()
        say(f"Error: the output cannot be written: {error.strerror}", err=True)
        return 2
    except KeyboardInterrupt:
        code = 130
        exec("")  # noqa: S102 - where Ctrl-C has left code in a text, Python would end by SIGINT, not by ours
    if argv is None:
        _end_at_once_if_asked(code)
        end_in_time(code, _say_at_the_end)
    return code


def _open_what_is_closed() -> None:
    """Give standard streams that the caller has closed (``>&-``) to nobody.

    Else Python has no such stream, and the next file to be opened gets its number, and what is printed there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if not _is_open(number):
            nobody = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, so this one
            os.set_inheritable(nobody, True)
            setattr(sys, name, os.fdopen(nobody, "w" if number else "r", encoding="utf-8"))


def _hear_of_children() -> None:
    """Undo that the caller ignores SIGCHLD, which is inherited: nobody would learn how a process ended."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main and hasattr(signal, "SIGCHLD") and signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def ended_by_ctrl_c() -> Iterator[None]:
    """Around imports: Ctrl-C ends the process at once.

    Python's own way may tell of an import that it broke off, in a traceback, or lose the interruption in it.
    """
    if not _is_own_process or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def end(*_: object) -> None:
        os.write(2, b"Interrupted.\n")
        os._exit(130)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextlib.contextmanager
def installed_first() -> Iterator[None]:
    """Meanwhile the working directory is searched last: a ``json.py`` of the bundle there is not Python's."""
    here = ("", str(Path.cwd()))
    front = []
    while sys.path and sys.path[0] in here:
        front.append(sys.path.pop(0))
    sys.path.extend(front)
    try:
        yield
    finally:
        for entry in front:
            if entry in sys.path:
                del sys.path[len(sys.path) - 1 - sys.path[::-1].index(entry)]
        sys.path[:0] = front


def _end_at_once_if_asked(code: int) -> None:
    """Heed Ctrl-C while the process ends: all is said and written, and there is no fault to tell."""
    with contextlib.suppress(ValueError):  # only the main thread can handle signals
        signal.signal(signal.SIGINT, lambda *_: os._exit(code))


def _say_at_the_end(warning: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        say(warning, err=True)
        sys.stdout.flush()


def _run(arguments: list[str]) -> int:
    try:
        with cli.make_context(NAME, arguments) as context:
            code = cli.invoke(context)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.Abort:
        return 130
    except click.ClickException as error:
        told = io.StringIO()
        error.show(told)
        say(told.getvalue().removesuffix("\n"), err=True)
        return error.exit_code
    except RewardKitError as error:
        say(f"Error: {error}", err=True)
        return 2
    return code if isinstance(code, int) else 0


def _flush_output(code: int) -> None:
    """Raises ``OSError`` where the output takes no more, unless ``code`` says that a fault has been told."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError:
        if code != 2:
            raise
        _discard_output()


def parse_args(argv: Sequence[str] | None = None) -> tuple[argparse.Namespace, list[str]]:
    """What the command line says, and the arguments it has too many, without running anything.

    The namespace has ``command`` (``None`` without one), ``verbose`` and the command's options. Raises
    ``SystemExit`` where the arguments are wrong, or ask for help.
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

        logger, told = logging.getLogger("dotenv.main"), logging.StreamHandler()
        told.setFormatter(logging.Formatter("Warning: .env: %(message)s"))
        logger.addHandler(told)
        try:
            load_dotenv(file, override=False)
        except (OSError, UnicodeDecodeError) as error:
            say(f"Warning: .env cannot be read: {error}", err=True)
        finally:
            logger.removeHandler(told)


def _discard_output() -> None:
    """Nobody reads our output any more: keep Python from complaining when it flushes it at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
