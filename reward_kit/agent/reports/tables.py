"""Tables for terminals, pipes and Markdown, and the console that prints them."""

from __future__ import annotations

import errno
import os
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from rich.console import Console
    from rich.table import Table


def plain_console(stream: IO[str]) -> Console:
    """A console without markup; raises ``BrokenPipeError`` if the reader of ``stream`` has gone."""
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:  # rich would end the process with the code of a failed evaluation
            raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    return PlainConsole(file=stream, markup=False, highlight=False, emoji=False)


def text_table(first: str, *, right: Sequence[str], box: bool = False, caption: str | None = None) -> Table:
    """A table with a column of text and columns of numbers, aligned ``right``."""
    from rich import box as boxes
    from rich.table import Table

    table = Table(box=boxes.ASCII if box else None, padding=(0, 1), pad_edge=box, header_style="bold")
    table.caption = caption
    table.caption_justify = "left"
    table.add_column(first, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def facts_table(facts: Iterable[tuple[str, str]], min_width: int | None = None) -> Table:
    """One (name, text) a line, long texts folded; ``min_width`` is that of the names."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=min_width)
    table.add_column(overflow="fold")
    for fact in facts:
        table.add_row(*fact)
    return table


def print_table(table: Table, console: Console) -> None:
    """Print a table without trailing blanks."""
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        console.out(line.rstrip(), highlight=False)


def table_lines(
    rows: Sequence[tuple[str, ...]], *, right: Collection[int] = (), width: int | None = None
) -> Iterator[str]:
    """The first of ``rows`` as headings, then a line for each; the columns ``right`` are aligned right.

    If the table is wider than ``width`` (None: unlimited), the last cells are put below their lines.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    below = width is not None and sum(widths) + 2 * (len(widths) - 1) > width
    for row in rows:
        cells = [f"{cell:{'>' if at in right else '<'}{widths[at]}}" for at, cell in enumerate(row)]
        yield "  ".join(cells[:-1] if below else cells).rstrip()
        if below:
            yield f"  {row[-1]}"


def markdown_table_lines(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    """The same as Markdown."""
    heading, *others = rows
    rule = ["---:" if at in right else "---" for at in range(len(heading))]
    for cells in (heading, rule, *others):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
