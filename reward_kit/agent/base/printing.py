"""Printing for commands: control characters are shown, not sent to the terminal."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import click

from reward_kit.agent.base.redaction import hide
from reward_kit.agent.base.text import tamed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


def say(text: str, *, err: bool = False, file: IO[Any] | None = None) -> None:
    """Print a text of one or more lines."""
    click.echo(tamed(text), err=err, file=file)


def warn(warning: str) -> None:
    """Print a warning to stderr."""
    say(f"warning: {warning}", err=True)


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines, with a substitute for characters that the stream cannot encode."""
    stream: Any = sys.stderr if err else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    for line in lines:
        say(line, file=stream)


def hide_in_output() -> None:
    """Hide secrets in all that Python code of this process prints from now on, also code of a bundle."""

    def write(write: Callable[[str], int], text: str) -> int:
        return write(hide(text, is_shown=True))

    for stream in (sys.stdout, sys.stderr):
        if "write" not in vars(stream):  # once
            stream.write = partial(write, stream.write)  # type: ignore[method-assign]


def terminal_width(stream: IO[str]) -> int | None:
    """The columns of a terminal; None for any other stream."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


@contextmanager
def reserved_output() -> Iterator[BinaryIO]:
    """Standard output for one document; anything else that is printed in the block goes to stderr.

    This holds for ``print``, C code and child processes.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    output = os.fdopen(kept, "wb", closefd=False)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield output
    finally:
        with suppress(OSError, ValueError):  # a failed write was raised where it happened
            output.close()
        with suppress(OSError):
            sys.stdout.flush()  # what was printed past the redirection
        os.dup2(kept, 1)
        os.close(kept)
