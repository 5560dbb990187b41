"""Printing for commands: control characters are shown, not sent to the terminal; and tables as text."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from itertools import zip_longest
from textwrap import wrap
from typing import IO, TYPE_CHECKING, Any, BinaryIO, Self

import click

from reward_kit.agent.base.redaction import hide
from reward_kit.agent.base.text import one_line, tamed

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence


class Styled(str):
    """A line of which a terminal shows a part, all by default, in a ``click.style``; a pipe gets the text."""

    part: slice
    style: dict[str, Any]

    def __new__(cls, text: str, start: int = 0, end: int | None = None, **style: Any) -> Self:
        """Style the characters from ``start`` to ``end``: ``Styled("failed 3", 0, 6, fg="red")``."""
        made = super().__new__(cls, text)
        made.part, made.style = slice(start, len(text) if end is None else end), style
        return made


def folded(line: str, width: int | None, hang: int = 2, *, break_long_words: bool = True) -> list[str]:
    """A line in parts of at most ``width`` (None: unlimited), the later ones ``hang`` columns further in.

    The style of a whole line is that of all its parts; any other that of the first.
    """
    if width is None or len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())][: width // 2] + " " * hang
    how: dict[str, Any] = {"break_long_words": break_long_words, "break_on_hyphens": False}
    first, *others = wrap(line, width, subsequent_indent=indent, **how)
    if isinstance(line, Styled):
        if line.part == slice(0, len(line)):
            return [Styled(part, **line.style) for part in (first, *others)]
        first = Styled(first, line.part.start, line.part.stop, **line.style)
    return [first, *others]


def say(text: str, *, err: bool = False, file: IO[Any] | None = None) -> None:
    """Print a text of one or more lines."""
    click.echo(tamed(text), err=err, file=file)


def warn(warning: str) -> None:
    """Print a warning to stderr; ``warning:`` may stand before it already."""
    say(f"warning: {warning.removeprefix('warning: ')}", err=True)


def print_lines(lines: Iterable[str], *, err: bool = False) -> None:
    """Print lines, with a substitute for characters that the stream cannot encode."""
    stream: Any = sys.stderr if err else sys.stdout
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(errors="replace")
    in_colour = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for line in lines:
        if in_colour and isinstance(line, Styled):
            before, middle, after = line[: line.part.start], line[line.part], line[line.part.stop :]
            styled = click.style(tamed(middle), **line.style)
            click.echo(f"{tamed(before)}{styled}{tamed(after)}", file=stream)
        else:
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


# -- tables

NAMES = 14
"""Columns for the names of facts, with a gap."""
NARROWEST = 12
"""Columns of a cell that is folded, at least."""
LONGEST_VALUE = 300
"""Characters of a value of models and people."""
WARNING: dict[str, Any] = {"fg": "yellow", "bold": True}


def table_lines(
    rows: Sequence[Sequence[str]],
    *,
    right: Collection[int] = (),
    width: int | None = None,
    drop: Iterable[int] | None = None,
) -> Iterator[str]:
    """The first of ``rows`` as headings, then a line for each; the columns ``right`` are aligned right.

    While the table is wider than ``width`` (None: unlimited), columns are left out: those of ``drop``, by
    default all between the first and the last, from the right. Then the last column is folded, and the first.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = list(range(len(widths)))
    if width is not None:
        for at in shown[-2:0:-1] if drop is None else drop:
            if _total(widths, shown) > width:
                shown = [one for one in shown if one != at]
        for at in (shown[-1], 0):
            over = _total(widths, shown) - width
            widths[at] = max(min(widths[at], NARROWEST), widths[at] - max(0, over))
    for number, row in enumerate(rows):
        for cells in zip_longest(*(_folded(row[at], widths[at]) for at in shown), fillvalue=""):
            sides = (">" if at in right else "<" for at in shown)
            parts = (f"{cell:{side}{widths[at]}}" for cell, side, at in zip(cells, sides, shown, strict=True))
            line = "  ".join(parts).rstrip()
            yield line if number else Styled(line, dim=True)


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[at] for at in shown) + 2 * (len(shown) - 1)


def _folded(cell: str, width: int) -> list[str]:
    return [cell] if len(cell) <= width else wrap(cell, width, break_on_hyphens=False)


def fact_lines(facts: Iterable[tuple[str, str]], width: int, most: int | None = None) -> Iterator[str]:
    """A line for each (name, text); long texts are folded, or cut after ``most`` lines."""
    how: dict[str, Any] = {"break_on_hyphens": False, "max_lines": most, "placeholder": " …"}
    for name, text in facts:
        style = WARNING if name == "warning" else {"bold": True}
        lines = wrap(text, width, initial_indent=f"{name:{NAMES}}", subsequent_indent=" " * NAMES, **how)
        yield from (Styled(line, 0, NAMES, **style) for line in lines)


def markdown_table_lines(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    """The first of ``rows`` as headings, then a line for each, as Markdown."""
    heading, *others = rows
    rule = ["---:" if at in right else "---" for at in range(len(heading))]
    for cells in (heading, rule, *others):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def code(text: str, longest: int = LONGEST_VALUE) -> str:
    """Text of models and people, so that Markdown shows it as it is."""
    return f"`{one_line(text, longest).replace('`', chr(39))}`"
