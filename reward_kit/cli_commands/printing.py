"""How commands print: whatever is in the text, and whatever reads it."""

from __future__ import annotations

import shutil
import sys
from typing import IO, TYPE_CHECKING, Any

import click

from reward_kit.agent.cut_text import tamed

if TYPE_CHECKING:
    from collections.abc import Iterable


def say(text: str, *, err: bool = False, file: IO[Any] | None = None) -> None:
    """Print one text of one or more lines; control characters in it are shown, not sent."""
    click.echo(tamed(text), err=err, file=file)


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print, with a substitute for what the stream cannot write."""
    stream: Any = sys.stderr if err else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    for line in lines:
        say(line, file=stream)


def terminal_width(stream: IO[str]) -> int | None:
    """How many columns a terminal has; None for what is none, where any width is fine."""
    return shutil.get_terminal_size().columns if stream.isatty() else None
