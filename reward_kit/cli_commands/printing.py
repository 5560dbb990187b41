"""Printing the lines of a report, whatever reads them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Iterable


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print, with a substitute for what the stream cannot write."""
    stream: Any = sys.stderr if err else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    for line in lines:
        click.echo(line, file=stream)
