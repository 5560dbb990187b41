"""Printing for commands: control characters are shown, not sent to the terminal."""

from __future__ import annotations

import shutil
import sys
from typing import IO, TYPE_CHECKING, Any

import click

from reward_kit.agent.base.text import tamed

if TYPE_CHECKING:
    from collections.abc import Iterable


def say(text: str, *, err: bool = False, file: IO[Any] | None = None) -> None:
    """Print a text of one or more lines."""
    click.echo(tamed(text), err=err, file=file)


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines, with a substitute for characters that the stream cannot encode."""
    stream: Any = sys.stderr if err else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    for line in lines:
        say(line, file=stream)


def terminal_width(stream: IO[str]) -> int | None:
    """The columns of a terminal; None for any other stream."""
    return shutil.get_terminal_size().columns if stream.isatty() else None
