"""Tables and named facts as lines of text, and tables as Markdown."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

NAMES = 14
"""Columns for the names of facts, with a gap."""
NARROWEST = 8
"""Columns of a cell that is folded, at least."""


def table_lines(
    rows: Sequence[Sequence[str]], *, right: Collection[int] = (), width: int | None = None
) -> Iterator[str]:
    """The first of ``rows`` as headings, then a line for each; the columns ``right`` are aligned right.

    If the table is wider than ``width`` (None: unlimited), the last cells are put below their lines, and
    then the first cells are folded.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    below = width is not None and sum(widths) + 2 * (len(widths) - 1) > width
    if width and below:
        widths[0] = min(widths[0], max(NARROWEST, width - sum(widths[1:-1]) - 2 * (len(widths) - 2)))
    for row in rows:
        head, *folded = wrap(row[0], widths[0], break_on_hyphens=False) if row[0] else [""]
        cells = [
            f"{cell:{'>' if at in right else '<'}{widths[at]}}" for at, cell in enumerate((head, *row[1:]))
        ]
        yield "  ".join(cells[:-1] if below else cells).rstrip()
        yield from folded
        if below and row[-1]:
            yield from (
                wrap(row[-1], width, initial_indent="  ", subsequent_indent="  ")
                if width
                else [f"  {row[-1]}"]
            )


def fact_lines(facts: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    """A line for each (name, text); long texts are folded."""
    for name, text in facts:
        indent = " " * NAMES
        yield from wrap(
            text, width, initial_indent=f"{name:{NAMES}}", subsequent_indent=indent, break_on_hyphens=False
        )


def markdown_table_lines(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    """The first of ``rows`` as headings, then a line for each, as Markdown."""
    heading, *others = rows
    rule = ["---:" if at in right else "---" for at in range(len(heading))]
    for cells in (heading, rule, *others):
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
